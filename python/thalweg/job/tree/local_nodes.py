"""The nodes of ``thalweg run`` with a tree of several nodes. The run starts and ends them through an engine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thalweg.errors import RecordError
from thalweg.job.tree.engines import engine_of
from thalweg.job.tree.order import NodeOrder
from thalweg.transports.links import Trust
from thalweg.ui.phrases import number_of

if TYPE_CHECKING:
    from thalweg.job.common.messages import Report
    from thalweg.job.common.session import Session
    from thalweg.job.tree.root import Tree
    from thalweg.plan import Plan
    from thalweg.record import RunRecord
    from thalweg.ui.progress import Progress


@dataclass(frozen=True)
class Orders:
    """Makes the order of each node: what it gets when it starts.

    ``server`` is the trust of a node as a server of its clients, ``member`` as a client of its parent.
    """

    parent: str
    network: Session
    server: Trust
    member: Trust
    seed: int

    def of(self, name: str, number: int) -> NodeOrder:
        """Return the order of one node."""
        transport = {"tls": self.member.tls}
        return NodeOrder(
            name=name,
            place=self.network.place(name),
            url=self.parent,
            listen=self.network.listening(name),
            address=self.network.address(name),
            options={
                "transport": transport,
                "token": self.member.token,
                "seed": self.seed + number,
                "tree": True,
            },
            trust=self.server,
        )


class TreeNodes:
    """A run's nodes. While a node is lost, so are its clients, until it is back or they have moved to other nodes.

    The other nodes continue meanwhile.
    """

    def __init__(self, plan: Plan, tree: Tree, network: Session, record: RunRecord, progress: Progress) -> None:
        self._plan, self._tree, self._network, self._record, self._progress = plan, tree, network, record, progress
        self._engine = engine_of(plan, record.log_path, self._lost, self._note)

    def start(self, server: Trust, member: Trust) -> None:
        """Start all nodes and wait until they listen. ``server`` and ``member`` as in ``Orders``.

        A node that is killed meanwhile is started again. After too many restarts its clients get other nodes. Raises
        RoundError if a node cannot be started, PlanError if the engine is not installed, LabError if the network
        fails.
        """
        placed = self._tree.placed
        for why in placed.reasons:
            self._record.log(why)
        names = list(placed.clients)
        self._progress.note(f"starting {number_of(len(names), 'node')}")
        self._tree.log = str(self._record.log_path)
        self._tree.recovery.restart = lambda node: self._engine.restart(node.name)
        self._tree.recovery.is_over = lambda node: self._engine.is_over(node.name)
        self._engine.start(names, Orders(self._tree.address, self._network, server, member, self._plan.job.seed))

        def look() -> None:
            self._engine.check()
            self._network.check()

        self._tree.open(look)
        self._record.note(engine=self._engine.facts())

    def release(self) -> None:
        """Expect nodes to end from now on: an end is no failure any more."""
        self._engine.release()

    def stop(self, *, grace: float) -> None:
        """Wait until all nodes have ended; after ``grace`` seconds end those that have not."""
        self._engine.stop(grace=grace)

    def reports(self) -> Mapping[str, Report]:
        """Return the nodes' final reports, by name."""
        return self._engine.reports()

    def _note(self, text: str) -> None:
        """Show an engine's note on the terminal and write it to the log. Any thread may call this."""
        self._progress.note(text)
        with suppress(RecordError):  # the record may be closed already
            self._record.log(text)

    def _lost(self, name: str, why: str) -> None:
        self._progress.note(f"{name} is gone: {why}")
        self._tree.lost(name, why)
        with suppress(RecordError):  # the record may be closed already
            self._record.log(f"{name} is gone: {why}")
