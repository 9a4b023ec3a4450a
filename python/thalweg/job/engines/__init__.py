"""What starts the nodes of a tree: ``local``, as processes of this machine, or ``ray``, wherever Ray has machines.

Whoever runs a tree knows no more of an engine than ``Engine`` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from thalweg.job.fleet import Fleet, OnEnd, Ordering
from thalweg.sections.trees import NodesSection

if TYPE_CHECKING:
    from thalweg.plan import Plan

# What a node's process runs, whoever starts it.
PROGRAM: Final = "thalweg.job.gateway"


class Engine(Protocol):
    """Starts nodes by their orders, watches them, and ends them."""

    def start(self, names: Sequence[str], orders: Ordering) -> None:
        """Start all nodes; do not wait for them. Raises ThalwegError."""

    def check(self) -> None:
        """Raise RoundError if a node could not be started."""

    def facts(self) -> dict[str, Any]:
        """Return what the record keeps of the engine: its name, and where it has put nodes."""

    def release(self) -> None:
        """From now on nodes may end."""

    def stop(self, *, grace: float) -> None:
        """Wait until all nodes have ended; after ``grace`` seconds end those that have not. Idempotent."""

    def reports(self) -> dict[str, dict[str, Any]]:
        """Return the nodes' last words, by name."""


class Local(Fleet):
    """Processes of this machine. One that ends early is lost."""

    def __init__(self, log: Path, lost: OnEnd) -> None:
        super().__init__(log, lost, program=PROGRAM)

    def facts(self) -> dict[str, Any]:
        return {"name": "local"}


def require(plan: Plan) -> None:
    """Raise PlanError if what the plan's engine needs is not installed."""
    if plan.nodes is not None and plan.nodes.engine == "ray":
        from thalweg.job.engines import by_ray

        by_ray.require()


def engine_of(plan: Plan, log: Path, lost: OnEnd, note: Callable[[str], None]) -> Engine:
    """Return the engine that a plan names. ``lost`` hears of a node that does not come back, and why."""
    nodes = plan.nodes or NodesSection()
    if nodes.engine == "local":
        return Local(log, lost)
    from thalweg.job.engines.by_ray import Ray

    return Ray(nodes, log, lost, note)
