"""``Algorithm``: an algorithm's name and paper, how it drives a job, and what server and clients compute.

Each file of this package that is an algorithm ends with its ``ALGORITHM``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from thalweg import _core
from thalweg.algorithms.client_step import MakeClient
from thalweg.algorithms.server_step import MakeRule, Rule, Scale, ServerStep, Values
from thalweg.algorithms.settings import Settings

T = TypeVar("T")


class Drive(Protocol):
    """Runs a job's rounds: calls ``step`` with the number of a round, and yields what ``step`` returns."""

    def __call__(self, step: Callable[[int], T], numbers: Iterable[int]) -> Iterator[T]: ...


def in_turn(step: Callable[[int], T], numbers: Iterable[int]) -> Iterator[T]:
    """Run a round for each number, one after the other.

    In a job with a server ``step`` runs a round of the core. On a graph it runs an iteration of a node; there the
    caller's ``numbers`` skip iterations that the node has missed.
    """
    for number in numbers:
        yield step(number)


# Reasons why an algorithm cannot run in some shapes of job (``thalweg.plan.effects.JOBS``).
STRATEGY: Final = "its strategy says how the server learns"
NO_SERVER: Final = "there is no server that could keep a model between rounds"
NO_GRAPH: Final = "clients do not know each other"
# The shapes of job in which an algorithm that needs a server, or a graph, cannot run, each with the reason.
NEEDS_SERVER: Final[Mapping[str, str]] = {"graph": NO_SERVER, "flower": STRATEGY}
NEEDS_GRAPH: Final[Mapping[str, str]] = {**dict.fromkeys(("star", "tree", "nodes"), NO_GRAPH), "flower": STRATEGY}


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """An algorithm that a plan can name. ``meaning`` describes it, ``source`` names its paper.

    ``refused`` has the shapes of jobs in which it cannot run, each with the reason. ``rounds`` runs the job's rounds.
    ``settings`` are its keys of ``[algorithm]`` with their defaults. The server's part after a round is ``rule``: it
    changes the model by the round's gradient, times the factor that ``scale`` computes. ``client`` is the client's
    part. ``own_apps`` says why it cannot train an app of the user's own; empty if it can.
    """

    name: str
    meaning: str
    source: str
    refused: Mapping[str, str]
    rounds: Drive = in_turn
    settings: Settings = field(default_factory=dict)
    rule: Callable[[Sequence[Values], Settings], Rule] | None = None
    scale: Callable[[Settings], Scale] | None = None
    #: Makes the server's part if a rule for the mean is not enough. Its arguments: the arena, the names of the trained
    #: tensors, the function that makes the rule, and the number of clients.
    step: Callable[[_core.Arena, Iterable[str], MakeRule, int], ServerStep] | None = None
    client: MakeClient | None = None
    own_apps: str = ""
    #: If not empty, a second tensor travels beside each trained one, whose name is this prefix and the other's name.
    beside: str = ""

    @property
    def trains(self) -> bool:
        """Whether it changes how clients or the server compute. It then needs a model that is trained."""
        return bool(self.settings)

    def chosen(self, given: Mapping[str, float | bool | None]) -> dict[str, float | bool | None]:
        """Return all settings: the ``given`` values, and the defaults of those that are not given."""
        return {key: default if given.get(key) is None else given[key] for key, default in self.settings.items()}

    @property
    def at_clients(self) -> bool:
        """Whether clients must be told which algorithm the job has."""
        return self.client is not None or bool(self.beside) or (self.trains and self.rule is None)

    def server_step(
        self, arena: _core.Arena, names: Iterable[str], settings: Settings, *, clients: int = 1
    ) -> ServerStep | None:
        """Return what the server does after each round to the tensors ``names``; None if it only takes the mean.

        ``clients`` is the number of clients of the job.
        """
        rule = self.rule
        if rule is None:
            return None
        if self.step is not None:
            return self.step(arena, names, lambda values: rule(values, settings), clients)
        scale = None if self.scale is None else self.scale(settings)
        return ServerStep(arena, names, lambda values: rule(values, settings), scale)


@dataclass(frozen=True, kw_only=True)
class FunctionAlgorithm:
    """An algorithm that is a function of ``thalweg``: a program calls it, and no plan can name it.

    ``name`` is the function's. ``meaning``, ``source`` and ``refused`` are as for an ``Algorithm``.
    """

    name: str
    meaning: str
    source: str
    refused: Mapping[str, str]
