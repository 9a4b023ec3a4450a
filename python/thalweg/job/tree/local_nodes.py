"""The nodes of ``thalweg run`` with a tree of several nodes. The run starts and ends them through an engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thalweg.errors import RecordError, RoundError
from thalweg.job.tree.engines import engine_of
from thalweg.job.tree.messages import KnownNode
from thalweg.job.tree.order import NodeOrder
from thalweg.job.tree.recovery import CLIENTS_ARE_LOST
from thalweg.machine.waiting import WAIT_SLICE
from thalweg.sections.trees import NodesSection
from thalweg.transports.links import Trust
from thalweg.trees.live import Placed
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

    ``root`` is the root's address, and ``address`` returns that of a middle node, once it is known. ``server`` is the
    trust of a node as a server of its clients, ``member`` as a client of its parent.
    """

    root: str
    placed: Placed
    address: Callable[[str], str | None]
    network: Session
    server: Trust
    member: Trust
    seed: int

    def parent(self, name: str) -> str | None:
        """Return the address of a node's parent; None if it is not known yet."""
        above = self.placed.above.get(name)
        return self.root if above is None else self.address(above)

    def of(self, name: str, number: int) -> NodeOrder:
        """Return the order of one node. Its seed depends on its place in the plan, not on when it is started."""
        del number
        every = [*self.placed.clients, *self.placed.below]
        below, address = self.placed.below.get(name), self.network.address(name)
        transport = {"tls": self.member.tls}
        return NodeOrder(
            name=name,
            place=self.network.place(name),
            url=self.parent(name) or "",
            # Nodes connect by TCP, whatever clients use.
            listen=self.network.listening(name) if below is None else f"tcp://{address}:0",
            address=address,
            clients=len(self.placed.clients.get(name, ())),
            nodes=None if below is None else len(below),
            options={
                "transport": transport,
                "token": self.member.token,
                "seed": self.seed + every.index(name) + 1,
                "tree": True,
            },
            trust=self.server,
        )


class TreeNodes:
    """A run's nodes. While a node is lost, so are its clients, until it is back or they have moved to other nodes.

    Clients below middle nodes do not move: if their node does not come back, they are lost.

    The other nodes continue meanwhile. The root brings its own nodes back. Those below middle nodes are started again
    here, and their parents open them.
    """

    def __init__(self, plan: Plan, tree: Tree, network: Session, record: RunRecord, progress: Progress) -> None:
        self._plan, self._tree, self._network, self._record, self._progress = plan, tree, network, record, progress
        self._engine = engine_of(plan, record.log_path, self._lost, self._note)
        # Nodes below middle nodes whose processes have ended, and why.
        self._ended: deque[tuple[str, str]] = deque()
        # All nodes whose processes have ended, until they are started again.
        self._gone: set[str] = set()
        self._is_open = False
        self._is_ending = False

    def start(self, server: Trust, member: Trust) -> None:
        """Start all nodes and wait until they listen. ``server`` and ``member`` as in ``Orders``.

        A node below a middle node is started once its parent listens. A node that is killed meanwhile is started again.
        After too many restarts its clients get other nodes. Raises RoundError if a node cannot be started, PlanError if
        the engine is not installed, LabError if the network fails.
        """
        tree, placed = self._tree, self._tree.placed
        for why in placed.reasons:
            self._record.log(why)
        waiting = [*placed.clients, *placed.below]
        self._progress.note(f"starting {number_of(len(waiting), 'node')}")
        tree.log = str(self._record.log_path)
        tree.recovery.restart = lambda node: self._restart(node.name)
        tree.recovery.is_over = lambda node: self._is_over(node.name)
        tree.recovery.look_below = self._restart_below
        seed = self._plan.job.seed
        orders = Orders(tree.address, placed, self._engine.address, self._network, server, member, seed)

        def start_ready() -> None:
            ready = [name for name in waiting if orders.parent(name) is not None]
            if ready:
                waiting[:] = [name for name in waiting if name not in ready]
                self._engine.start(ready, orders)

        def look() -> None:
            self._engine.check()
            self._network.check()
            self._restart_below()
            start_ready()

        start_ready()
        tree.open(look)
        self._is_open = True
        self._record.note(engine=self._engine.facts(), **({"below": placed.below} if placed.above else {}))

    @property
    def addresses(self) -> dict[str, str]:
        """The address to which each client connects. Called when the nodes have been started."""
        placed = self._tree.placed
        if not placed.above:
            return self._tree.addresses
        found: dict[str, str] = {}
        for node, clients in placed.clients.items():
            # All nodes listen. This one's line may still be on its way.
            while (address := self._engine.address(node, WAIT_SLICE)) is None:
                self._engine.check()
            found |= dict.fromkeys(clients, address)
        return found

    def _restart_below(self) -> None:
        """Start nodes below middle nodes again that have ended. Raises RoundError if one never opened."""
        while self._ended:
            name, why = self._ended.popleft()
            if self._restart(name) or self._is_cut_off(name):
                continue
            if not self._is_open:
                raise RoundError(
                    f"{name} is gone: {why}, before it was open; clients below middle nodes do not move",
                    f"See {self._tree.log}",
                )
            self._note(CLIENTS_ARE_LOST.format(name))

    def _restart(self, name: str) -> bool:
        """Start a node again; return whether that was done. A middle node does not wait for nodes that are over."""
        if self._is_ending or self._is_over(name) or self._is_cut_off(name):
            return False
        below = self._tree.placed.below.get(name, ())
        over = [node for node in below if self._is_over(node)]
        away = (self._plan.nodes or NodesSection()).away if self._is_open else None
        known = [self._known(node) for node in below] if self._is_open else ()
        self._gone.discard(name)  # before the new process can end
        if not self._engine.restart(name, away, known):
            self._gone.add(name)
            return False
        if over:
            self._note(f"{name} goes on without {', '.join(over)}")
        return True

    def _known(self, name: str) -> KnownNode:
        """Return what a middle node that is started again needs to know of a node below it."""
        placed = self._tree.placed
        clients = [one for node, own in placed.clients.items() if name in placed.path(node) for one in own]
        url = "" if name in placed.below else self._engine.address(name) or ""
        return KnownNode(name, url, clients, len(clients), "does not come back" if self._is_over(name) else None)

    def _is_over(self, name: str) -> bool:
        """Return whether a node has ended and will not be started again. A middle node needs a node below it."""
        if self._engine.is_over(name):
            return True
        below = self._tree.placed.below.get(name, ())
        return name in self._gone and bool(below) and all(self._is_over(node) for node in below)

    def _is_cut_off(self, name: str) -> bool:
        """Return whether a middle node above a node is over."""
        _, *above = self._tree.placed.path(name)
        return any(self._is_over(middle) for middle in above)

    def release(self) -> None:
        """Expect nodes to end from now on: an end is no failure any more, and no node is started again."""
        self._is_ending = True
        self._engine.release()

    def end_cut_off(self) -> list[str]:
        """End the nodes that have lost a middle node above them; return the clients whose node or middle node is gone.

        Nobody can tell them that the job is over.
        """
        placed = self._tree.placed
        if not placed.above:
            return []
        self._engine.end([node for node in placed.above if not self._gone.isdisjoint(list(placed.path(node))[1:])])
        return [
            client
            for node, clients in placed.clients.items()
            if not self._gone.isdisjoint(placed.path(node))
            for client in clients
        ]

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
        self._gone.add(name)
        if name in self._tree.placed.above:
            self._ended.append((name, why))  # its parent notices that the link broke
        else:
            self._tree.lost(name, why)
        with suppress(RecordError):  # the record may be closed already
            self._record.log(f"{name} is gone: {why}")
