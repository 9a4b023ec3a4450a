"""Engines: they start the nodes of a tree. ``local`` starts processes on this machine, ``ray`` actors of a Ray cluster.

A run uses engines only through the protocol ``Engine``.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from thalweg.job.common.fleet import Fleet, Member, OnEnd
from thalweg.job.common.messages import Line, Orders, Report
from thalweg.job.tree.messages import KnownNode
from thalweg.job.tree.order import Listening, NodeOrder
from thalweg.sections.trees import NodesSection

if TYPE_CHECKING:
    from thalweg.plan import Plan
    from thalweg.plan.options import CoreOptions

# The module that a node's process runs, with either engine.
PROGRAM: Final = "thalweg.job.tree.node"
# Seconds that clients try to reach a node's address. Ray may start the node again, which can take a minute.
RAY_TIMEOUT: Final = 180.0
# Maximum number of times that the local engine starts a node again, if the plan does not give one. After that the
# node's clients move to other nodes.
RESTARTS: Final = 3


class Engine(Protocol):
    """Starts nodes with their orders, watches them, and ends them."""

    def start(self, names: Sequence[str], orders: Orders[NodeOrder]) -> None:
        """Start these nodes, besides those started before; do not wait for them. Raises ThalwegError."""

    def restart(self, name: str, away: float | None = None, known: Sequence[KnownNode] = ()) -> bool:
        """Start a node again that has ended; return whether that was done. The calling thread must outlive the node.

        ``known`` are the nodes below a middle node. It waits for them at most ``away`` seconds, and not for those that
        are gone.
        """

    def is_over(self, name: str) -> bool:
        """Return whether a node has ended and will not be started again."""

    def address(self, name: str, seconds: float = 0.0) -> str | None:
        """Return where a node listens, after waiting for that at most ``seconds``; None if it is not known."""

    def check(self) -> None:
        """Raise RoundError if a node could not be started. A node that was killed does not count: it may come back."""

    def facts(self) -> dict[str, object]:
        """Return the record's facts about the engine: its name, and where it has placed nodes."""

    def release(self) -> None:
        """Expect nodes to end from now on: an end is no failure any more."""

    def end(self, names: Collection[str]) -> None:
        """End these nodes' processes, without waiting for that. Called after ``release``."""

    def stop(self, *, grace: float) -> None:
        """Wait until all nodes have ended; after ``grace`` seconds end those that have not. Idempotent."""

    def reports(self) -> Mapping[str, Report]:
        """Return the nodes' final reports, by name."""


class Local(Fleet[NodeOrder]):
    """The local engine: nodes are processes of this machine. A node that ended early is lost until ``restart``."""

    def __init__(self, log: Path, lost: OnEnd, note: Callable[[str], None], *, restarts: int = RESTARTS) -> None:
        super().__init__(log, lost, program=PROGRAM, on_line=self._told)
        self._most = restarts
        self._note_of_run = note
        self._orders: dict[str, NodeOrder] = {}
        self._restarts: Counter[str] = Counter()
        self._addresses: dict[str, str] = {}
        self._heard = threading.Condition()
        # Held while the run is notified of a node's end, so that nobody replaces the node before that is done.
        self._telling = threading.Lock()

    def start(self, names: Sequence[str], orders: Orders[NodeOrder]) -> None:
        self._orders |= {name: orders.of(name, number) for number, name in enumerate(names, len(self.members) + 1)}
        super().start(names, orders)

    def check(self) -> None:
        """Raise RoundError if a node has ended by itself. A node that a signal killed may be started again."""
        for member in self.members:
            if member.failure is not None and not member.was_killed:
                raise self.failed(member)

    def restart(self, name: str, away: float | None = None, known: Sequence[KnownNode] = ()) -> bool:
        with self._telling:
            may = self._has_ended(name) and self._restarts[name] < self._most
        if not may:
            return False
        self._restarts[name] += 1
        self._note_of_run(f"starting {name} again")
        order = self._orders[name]
        # Whoever is below it looks for it where it listened. A parent that was started anew does not know where.
        nodes = None if order.nodes is None else order.nodes - sum(one.gone is not None for one in known)
        self.restart_member(name, replace(order, former=self.address(name), away=away, nodes=nodes, known=known))
        return True

    def is_over(self, name: str) -> bool:
        with self._telling:
            return self._has_ended(name) and self._restarts[name] >= self._most

    def address(self, name: str, seconds: float = 0.0) -> str | None:
        with self._heard:
            self._heard.wait_for(lambda: name in self._addresses, seconds)
            return self._addresses.get(name)

    def facts(self) -> dict[str, object]:
        return {"name": "local"}

    def _told(self, name: str, line: Line) -> None:
        address = line.get("address")
        if line["say"] == Listening.say and isinstance(address, str):
            with self._heard:
                self._addresses[name] = address
                self._heard.notify_all()

    def _ended(self, member: Member, failure: str | None) -> None:
        with self._telling:
            super()._ended(member, failure)

    def _has_ended(self, name: str) -> bool:
        return any(member.name == name and member.failure is not None for member in self.members)


def require(plan: Plan) -> None:
    """Raise PlanError if the plan's engine needs a package that is not installed."""
    if plan.nodes is not None and plan.nodes.engine == "ray":
        from thalweg.job.tree.engines import by_ray

        by_ray.require()


def client_options(plan: Plan) -> CoreOptions:
    """Return the core's options of a run's clients that depend on the engine."""
    return {"timeout": RAY_TIMEOUT} if plan.nodes is not None and plan.nodes.engine == "ray" else {}


def engine_of(plan: Plan, log: Path, lost: OnEnd, note: Callable[[str], None]) -> Engine:
    """Return the engine that a plan names. It calls ``lost`` with the name of a node that has ended early, and why."""
    nodes = plan.nodes or NodesSection()
    if nodes.engine == "local":
        return Local(log, lost, note, restarts=RESTARTS if nodes.restarts is None else nodes.restarts)
    from thalweg.job.tree.engines.by_ray import Ray

    return Ray(nodes, log, lost, note)
