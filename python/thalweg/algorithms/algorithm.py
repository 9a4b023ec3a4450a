"""What an algorithm of a plan is: its name and paper, how it drives a job, and what server and clients compute.

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
    """Drives a job through rounds with these numbers. ``step`` runs a round; its results are yielded."""

    def __call__(self, step: Callable[[int], T], numbers: Iterable[int]) -> Iterator[T]: ...


def in_turn(step: Callable[[int], T], numbers: Iterable[int]) -> Iterator[T]:
    """Run a round for each number, one after the other.

    A round is done by the core: it sends the model, receives updates and takes their mean. An iteration of a node on a
    graph is driven in the same way; a node that is far behind skips to later numbers.
    """
    for number in numbers:
        yield step(number)


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
    refused: Mapping[str, str]
    rounds: Drive = in_turn
    settings: Settings = field(default_factory=dict)
    rule: Callable[[Sequence[Values], Settings], Rule] | None = None
    scale: Callable[[Settings], Scale] | None = None
    #: Makes the server's part where that is more than a rule of the mean, from the arena, the names of the trained
    #: tensors, what makes the rule, and the number of clients.
    step: Callable[[_core.Arena, Iterable[str], MakeRule, int], ServerStep] | None = None
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
        if self.step is not None:
            return self.step(arena, names, lambda values: rule(values, settings), clients)
        scale = None if self.scale is None else self.scale(settings)
        return ServerStep(arena, names, lambda values: rule(values, settings), scale)


@dataclass(frozen=True, kw_only=True)
class Called:
    """An algorithm that a program calls as a function of ``thalweg``, and that no plan can name.

    ``name`` is the function. ``meaning``, ``source`` and ``refused`` are as for an ``Algorithm``.
    """

    name: str
    meaning: str
    source: str
    refused: Mapping[str, str]
