"""What starts the nodes of a tree: ``local``, as processes of this machine, or ``ray``, wherever Ray has machines.

Whoever runs a tree knows no more of an engine than ``Engine`` says.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from thalweg.job.fleet import Fleet, Member, OnEnd, Ordering
from thalweg.sections.trees import NodesSection

if TYPE_CHECKING:
    from thalweg.plan import Plan

# What a node's process runs, whoever starts it.
PROGRAM: Final = "thalweg.job.gateway"
# Seconds that clients try the address of a node that Ray may start again, which takes a minute on a busy machine.
RAY_PATIENCE: Final = 180.0
# How often a process of this machine is started again if the plan does not say it; then its clients move.
RESTARTS: Final = 3


class Engine(Protocol):
    """Starts nodes by their orders, watches them, and ends them."""

    def start(self, names: Sequence[str], orders: Ordering) -> None:
        """Start all nodes; do not wait for them. Raises ThalwegError."""

    def restart(self, name: str) -> bool:
        """Start a node again that has ended; return whether it was. The caller's thread has to outlive the node."""

    def is_over(self, name: str) -> bool:
        """Return whether a node that has ended is not started again."""

    def check(self) -> None:
        """Raise RoundError if a node could not be started. One that was killed may be started again."""

    def facts(self) -> dict[str, Any]:
        """Return what the record keeps of the engine: its name, and where it has put nodes."""

    def release(self) -> None:
        """From now on nodes may end."""

    def stop(self, *, grace: float) -> None:
        """Wait until all nodes have ended; after ``grace`` seconds end those that have not. Idempotent."""

    def reports(self) -> dict[str, dict[str, Any]]:
        """Return the nodes' last words, by name."""


class Local(Fleet):
    """Processes of this machine. One that ends early is lost until it is started again."""

    def __init__(self, log: Path, lost: OnEnd, note: Callable[[str], None], *, restarts: int = RESTARTS) -> None:
        super().__init__(log, lost, program=PROGRAM)
        self._most = restarts
        self._note_of_run = note
        self._orders: dict[str, Mapping[str, Any]] = {}
        self._restarts: Counter[str] = Counter()
        # Held while the run hears of a node's end, so that it does not take a node that was started anew for that one.
        self._telling = threading.Lock()

    def start(self, names: Sequence[str], orders: Ordering) -> None:
        self._orders = {name: orders.of(name, number) for number, name in enumerate(names, 1)}
        super().start(names, orders)

    def check(self) -> None:
        """Raise RoundError if a node has ended by itself. One that was killed may be started again."""
        for member in self.members:
            if member.failure is not None and not member.was_killed:
                raise self.failed(member)

    def restart(self, name: str) -> bool:
        with self._telling:
            may = self._has_ended(name) and self._restarts[name] < self._most
        if not may:
            return False
        self._restarts[name] += 1
        self._note_of_run(f"starting {name} again")
        self.again(name, self._orders[name])
        return True

    def is_over(self, name: str) -> bool:
        return self._has_ended(name) and self._restarts[name] >= self._most

    def facts(self) -> dict[str, Any]:
        return {"name": "local"}

    def _ended(self, member: Member, failure: str | None) -> None:
        with self._telling:
            super()._ended(member, failure)

    def _has_ended(self, name: str) -> bool:
        return any(member.name == name and member.failure is not None for member in self.members)


def require(plan: Plan) -> None:
    """Raise PlanError if what the plan's engine needs is not installed."""
    if plan.nodes is not None and plan.nodes.engine == "ray":
        from thalweg.job.engines import by_ray

        by_ray.require()


def client_options(plan: Plan) -> dict[str, Any]:
    """Return those of the core's options of a run's clients that differ with the engine that starts nodes."""
    return {"patience": RAY_PATIENCE} if plan.nodes is not None and plan.nodes.engine == "ray" else {}


def engine_of(plan: Plan, log: Path, lost: OnEnd, note: Callable[[str], None]) -> Engine:
    """Return the engine that a plan names. ``lost`` hears of a node that does not come back, and why."""
    nodes = plan.nodes or NodesSection()
    if nodes.engine == "local":
        return Local(log, lost, note, restarts=RESTARTS if nodes.restarts is None else nodes.restarts)
    from thalweg.job.engines.by_ray import Ray

    return Ray(nodes, log, lost, note)
