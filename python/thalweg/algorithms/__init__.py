"""The algorithms that a plan can name, and what the parties compute. Imports no framework.

``ALGORITHMS`` defines each of them once: its name in ``[algorithm]``, what it is, and how it drives a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Protocol, TypeVar

from thalweg.algorithms import choco, dpsgd, fedavg
from thalweg.errors import PlanError

__all__ = ["ALGORITHMS", "FOR_GRAPHS", "ON_GRAPHS", "Algorithm", "find"]

T = TypeVar("T")


class Drive(Protocol):
    """Drives a job through rounds with these numbers. ``step`` runs a round; its results are yielded."""

    def __call__(self, step: Callable[[int], T], numbers: Iterable[int]) -> Iterator[T]: ...


@dataclass(frozen=True)
class Algorithm:
    """How a job is driven. ``meaning`` describes it, ``source`` names its paper."""

    name: str
    meaning: str
    source: str
    rounds: Drive


# The default algorithm of jobs on a graph, and all algorithms that such a job can have.
ON_GRAPHS: Final = "dpsgd"
FOR_GRAPHS: Final = (ON_GRAPHS, choco.NAME)
ALGORITHMS: Final = {
    one.name: one
    for one in (
        Algorithm("fedavg", fedavg.MEANING, fedavg.SOURCE, fedavg.rounds),
        Algorithm(ON_GRAPHS, dpsgd.MEANING, dpsgd.SOURCE, dpsgd.rounds),
        Algorithm(choco.NAME, choco.MEANING, choco.SOURCE, choco.rounds),
    )
}


def find(name: str) -> Algorithm:
    """Return the algorithm called ``name``. Raises PlanError if there is none."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    near = get_close_matches(name, ALGORITHMS, n=1)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    raise PlanError(f"unknown algorithm {name!r}", f"{guess}Known: {', '.join(ALGORITHMS)}")
