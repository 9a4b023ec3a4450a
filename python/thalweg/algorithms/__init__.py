"""The algorithms that a plan can name, and what the parties compute. Imports no framework.

``ALGORITHMS`` defines each of them once: its name in ``[algorithm]``, what it is, and how it drives a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Protocol, TypeVar

from thalweg.algorithms import dpsgd, fedavg
from thalweg.errors import PlanError

__all__ = ["ALGORITHMS", "ON_GRAPHS", "Algorithm", "find"]

T = TypeVar("T")


class Drive(Protocol):
    """Takes a job through rounds of these numbers; ``step`` runs one, and what it returns is yielded."""

    def __call__(self, step: Callable[[int], T], numbers: Iterable[int]) -> Iterator[T]: ...


@dataclass(frozen=True)
class Algorithm:
    """How a job is driven. ``meaning`` says it in words, ``source`` where it is from."""

    name: str
    meaning: str
    source: str
    rounds: Drive


# The one of jobs with a graph.
ON_GRAPHS: Final = "dpsgd"
ALGORITHMS: Final = {
    one.name: one
    for one in (
        Algorithm("fedavg", fedavg.MEANING, fedavg.SOURCE, fedavg.rounds),
        Algorithm(ON_GRAPHS, dpsgd.MEANING, dpsgd.SOURCE, dpsgd.rounds),
    )
}


def find(name: str) -> Algorithm:
    """Return the algorithm called ``name``. Raises PlanError if there is none."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    near = get_close_matches(name, ALGORITHMS, n=1)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    raise PlanError(f"unknown algorithm {name!r}", f"{guess}Known: {', '.join(ALGORITHMS)}")
