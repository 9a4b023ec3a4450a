"""The algorithms that a plan can name, and what the parties compute. Imports no framework.

``ALGORITHMS`` defines each of them once: its name in ``[algorithm]``, what it is, and how it drives a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final, Protocol, TypeVar

from thalweg import _core
from thalweg.algorithms import (
    choco,
    dpsgd,
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    fednova,
    fedprox,
    fedyogi,
    qfedavg,
    scaffold,
)
from thalweg.algorithms.client_step import MakeClient
from thalweg.algorithms.server_step import Rule, Scale, ServerStep, Values
from thalweg.algorithms.settings import Settings
from thalweg.errors import PlanError

__all__ = ["ALGORITHMS", "FOR_GRAPHS", "ON_GRAPHS", "SETTINGS", "Algorithm", "find"]

T = TypeVar("T")


class Drive(Protocol):
    """Drives a job through rounds with these numbers. ``step`` runs a round; its results are yielded."""

    def __call__(self, step: Callable[[int], T], numbers: Iterable[int]) -> Iterator[T]: ...


# Why an algorithm cannot run in some shapes of job (``thalweg.plan.effects.JOBS``).
STRATEGY: Final = "its strategy says how the server learns"
NO_SERVER: Final = "there is no server that could keep a model between rounds"
NO_GRAPH: Final = "clients do not know each other"
SERVED: Final[Mapping[str, str]] = {"graph": NO_SERVER, "flower": STRATEGY}
AMONG_NODES: Final[Mapping[str, str]] = {**dict.fromkeys(("star", "tree", "nodes"), NO_GRAPH), "flower": STRATEGY}


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """How a job is driven. ``meaning`` describes it, ``source`` names its paper.

    ``refused`` has the shapes of jobs that cannot have it, each with the reason. ``settings`` are its keys of
    ``[algorithm]`` with their defaults. ``rule`` and ``scale`` are the server's part after a round, ``client`` is the
    client's part. ``own_apps`` is why an app of the user's own cannot have it; empty if it can.
    """

    name: str
    meaning: str
    source: str
    rounds: Drive
    refused: Mapping[str, str]
    settings: Settings = field(default_factory=dict)
    rule: Callable[[Sequence[Values], Settings], Rule] | None = None
    scale: Callable[[Settings], Scale] | None = None
    client: MakeClient | None = None
    own_apps: str = ""
    #: What names of tensors begin with that travel beside each trained one; empty if there are none.
    beside: str = ""

    @property
    def trains(self) -> bool:
        """Whether it changes what clients or the server compute, so that it needs a model that is trained."""
        return bool(self.settings)

    def chosen(self, given: Mapping[str, float | bool | None]) -> dict[str, float | bool | None]:
        """Return the settings: those that are ``given``, and the defaults of the others."""
        return {key: default if given.get(key) is None else given[key] for key, default in self.settings.items()}

    @property
    def at_clients(self) -> bool:
        """Whether clients have to know of it."""
        return self.client is not None or bool(self.beside) or (self.trains and self.rule is None)

    def server_step(
        self, arena: _core.Arena, names: Iterable[str], settings: Settings, *, clients: int = 1
    ) -> ServerStep | None:
        """Return what the server of ``clients`` clients does after each round with the tensors ``names``.

        None if it takes the mean.
        """
        rule = self.rule
        if rule is None:
            return None
        if self.beside:
            return scaffold.Step(arena, names, lambda values: rule(values, settings), clients)
        scale = None if self.scale is None else self.scale(settings)
        return ServerStep(arena, names, lambda values: rule(values, settings), scale)


# The default algorithm of jobs on a graph, and all algorithms that such a job can have.
ON_GRAPHS: Final = "dpsgd"
FOR_GRAPHS: Final = (ON_GRAPHS, choco.NAME)
ALGORITHMS: Final = {
    one.name: one
    for one in (
        Algorithm(
            name="fedavg",
            meaning=fedavg.MEANING,
            source=fedavg.SOURCE,
            rounds=fedavg.rounds,
            refused=SERVED,
        ),
        Algorithm(
            name=fedavgm.NAME,
            meaning=fedavgm.MEANING,
            source=fedavgm.SOURCE,
            rounds=fedavg.rounds,
            refused=SERVED,
            settings=fedavgm.SETTINGS,
            rule=fedavgm.rule,
        ),
        Algorithm(
            name=fedadam.NAME,
            meaning=fedadam.MEANING,
            source=fedadam.SOURCE,
            rounds=fedavg.rounds,
            refused=SERVED,
            settings=fedadam.SETTINGS,
            rule=fedadam.rule,
        ),
        Algorithm(
            name=fedadagrad.NAME,
            meaning=fedadagrad.MEANING,
            source=fedadagrad.SOURCE,
            rounds=fedavg.rounds,
            refused=SERVED,
            settings=fedadagrad.SETTINGS,
            rule=fedadagrad.rule,
        ),
        Algorithm(
            name=fedyogi.NAME,
            meaning=fedyogi.MEANING,
            source=fedyogi.SOURCE,
            rounds=fedavg.rounds,
            refused=SERVED,
            settings=fedyogi.SETTINGS,
            rule=fedyogi.rule,
        ),
        Algorithm(
            name=fedprox.NAME,
            meaning=fedprox.MEANING,
            source=fedprox.SOURCE,
            rounds=fedavg.rounds,
            refused=SERVED,
            settings=fedprox.SETTINGS,
            own_apps=fedprox.OWN_APPS,
        ),
        Algorithm(
            name=fednova.NAME,
            meaning=fednova.MEANING,
            source=fednova.SOURCE,
            rounds=fedavg.rounds,
            refused=SERVED,
            settings=fednova.SETTINGS,
            rule=fednova.rule,
            scale=fednova.scale,
            client=fednova.client,
        ),
        Algorithm(
            name=qfedavg.NAME,
            meaning=qfedavg.MEANING,
            source=qfedavg.SOURCE,
            rounds=fedavg.rounds,
            refused=SERVED,
            settings=qfedavg.SETTINGS,
            rule=qfedavg.rule,
            scale=qfedavg.scale,
            client=qfedavg.client,
        ),
        Algorithm(
            name=scaffold.NAME,
            meaning=scaffold.MEANING,
            source=scaffold.SOURCE,
            rounds=fedavg.rounds,
            refused=SERVED,
            settings=scaffold.SETTINGS,
            rule=scaffold.rule,
            own_apps=scaffold.OWN_APPS,
            beside=scaffold.CONTROL,
        ),
        Algorithm(
            name=ON_GRAPHS,
            meaning=dpsgd.MEANING,
            source=dpsgd.SOURCE,
            rounds=fedavg.rounds,
            refused=AMONG_NODES,
        ),
        Algorithm(
            name=choco.NAME,
            meaning=choco.MEANING,
            source=choco.SOURCE,
            rounds=fedavg.rounds,
            refused=AMONG_NODES,
        ),
    )
}

# The keys of [algorithm] that are settings of some algorithm with a server.
SETTINGS: Final = tuple(dict.fromkeys(key for one in ALGORITHMS.values() for key in one.settings))


def find(name: str) -> Algorithm:
    """Return the algorithm called ``name``. Raises PlanError if there is none."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    near = get_close_matches(name, ALGORITHMS, n=1)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    raise PlanError(f"unknown algorithm {name!r}", f"{guess}Known: {', '.join(ALGORITHMS)}")
