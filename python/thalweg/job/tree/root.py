"""The root of an aggregation tree. It runs rounds like a server, but its clients are connected to nodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

from thalweg import _core, wire
from thalweg.bounded_json import JsonError
from thalweg.errors import RoundError
from thalweg.job.common import server_reports
from thalweg.job.common.resent import counted
from thalweg.job.common.server_reports import Departure, ResentCounts
from thalweg.job.tree import placement
from thalweg.job.tree.balancing import LoadBalancer
from thalweg.job.tree.confirming import Fates
from thalweg.job.tree.known import Node, Received
from thalweg.job.tree.messages import ForgetClient, ForgetNode, Open, Request, Resent, TopOptions, Wait
from thalweg.job.tree.node_log import NodeLog
from thalweg.job.tree.proofs import Keys, ProofChecker
from thalweg.job.tree.recovery import NodeRecovery
from thalweg.job.tree.requests import Reply, ask
from thalweg.job.tree.rounds import Done, Draw, RoundPlan, RunningRound
from thalweg.machine.waiting import WAIT_SLICE
from thalweg.outcome.core import Outcome
from thalweg.plan.on_trees import EVERYWHERE, is_spread
from thalweg.plan.options import CoreOptions, chosen
from thalweg.sections.trees import NodesSection, TreeSection
from thalweg.transports.links import Trust
from thalweg.trees import answers, live
from thalweg.trees.answers import AnyAnswer
from thalweg.trees.balance import Balance, Move, balance_in_words, rules
from thalweg.trees.counters import NodeClients
from thalweg.trees.merging import merged, workers
from thalweg.ui.phrases import listed, number_of

if TYPE_CHECKING:
    from thalweg.plan import Plan

# Maximum size of sums as a multiple of the model's size: a sum has at most 16 bytes for an element, and an element has
# at least one byte.
SUMS_OF_MODELS: Final = 16
# How long the end of a job waits until the nodes know which updates of the last round count.
CONFIRM_SECONDS: Final = 5.0
# Bytes for everything that sums contain beside their elements.
SLACK: Final = 1 << 20


@dataclass(frozen=True)
class RoundOptions:
    """The server's options that the root itself needs."""

    enough: int = 1
    seed: int = 0
    deadline: float | None = None
    # Seconds that a lost client may take to come back. The core's default is the same.
    grace: float = 10.0
    # The same while a round has too few updates.
    outage: float = 0.0
    # How many clients the job has, if the root knows it.
    expected: int | None = None
    # How many clients take part in a round; None: all.
    choose: int | None = None
    # How many updates a round counts; None: all.
    goal: int | None = None


class Serving(Protocol):
    """What runs the rounds of a job: the core's server, or the root of a tree."""

    @property
    def address(self) -> str:
        """The address where it listens."""

    def wait(self, clients: int, timeout: float | None) -> int:
        """Wait at most ``timeout`` seconds until ``clients`` clients are connected; return how many are connected."""

    def round(self, number: int, config: str, observer: Callable[[str], None] | None) -> str:
        """Run a round and return its outcome as JSON."""

    def departed(self) -> str:
        """Return clients that are not connected any more, as JSON."""

    def resent(self, timeout: float) -> str:
        """Return the segments retransmitted on the way to each client and by it, as JSON."""

    def forget(self, client: str, why: str = "") -> None:
        """Wait no more for a client whose process has ended."""

    def clients(self) -> str:
        """Return the names of the clients that are connected, as JSON."""

    def notes(self) -> list[str]:
        """Return what happened since the last call."""

    def tree(self) -> str | None:
        """Return the counters of the workers' work so far, as JSON."""

    def close(self, reason: str) -> None:
        """Tell everybody that the job is over, and stop."""


class LostNodeError(RoundError):
    """A node was lost while the root opened it."""


class Tree:
    """A root that asks the nodes to run each round. The top then folds the nodes' sums."""

    def __init__(
        self,
        model: _core.Arena,
        url: str,
        nodes: live.Placed | int,
        options: CoreOptions,
        own: CoreOptions,
        *,
        top: str,
        place: placement.Placing = placement.place_evenly,
        choose: int | None = None,
        goal: int | None = None,
    ) -> None:
        """Listen at ``url`` for nodes. ``options`` are for the nodes' servers, ``own`` for the root's server.

        If the run does not start the nodes, ``nodes`` is their number, and each node says how many clients it has.
        ``place`` decides to which nodes the clients of a lost node move. ``choose`` is the number of clients that take
        part in a round; without it all take part. A round ends with the first ``goal`` updates over all nodes. Both
        need a dedicated top.
        """
        self.placed = live.Placed({}, []) if isinstance(nodes, int) else nodes
        self._model, self._options = model, options
        self._nodes = [Node(name, clients) for name, clients in self.placed.of_root.items()]
        self._count = nodes if isinstance(nodes, int) else len(self._nodes)
        self._opened = False
        self._rounds = wire.made(RoundOptions, options)
        largest = SUMS_OF_MODELS * len(model) + SLACK
        bounds: CoreOptions = {"memory": self._count * largest, "max_result": largest}
        self._server = _core.TaskServer(url, wire.encode({**own, **bounds}))
        self._kind, self._of_top = top, _of_top(options)
        self._between: CoreOptions = {**chosen(own, ("job", "liveness", "grace")), **bounds}
        self.zero = time.time()
        # The version of the model. A node that already has this version is not sent the model again.
        self._versions = count(1)
        self._version = next(self._versions)
        self._proofs = ProofChecker(wire.made(Keys, own), self._ask_one)
        self._node_log = NodeLog()
        # What became of the nodes' parts in the last round, and the thread that tells the nodes.
        self._fates = Fates()
        self._confirming: threading.Thread | None = None
        # The clients that take part in the next round, if the parent of a middle node has drawn them.
        self._only: frozenset[str] | None = None
        # The round that is under way.
        self._running: RunningRound | None = None
        # Nodes that the run did not start and that could not listen for clients.
        self._refused: set[str] = set()
        self._notes: list[str] = []
        self._lock = threading.Lock()
        self._closed = False
        self._place, self._choose, self._goal = place, choose, goal
        # The number of the round that began last; and for each client the last round that counted its update.
        self._number = 0
        self._counted: dict[str, int] = {}
        # For each client that has moved: the last round in which its former node may have counted its update.
        self._moved: dict[str, int] = {}
        # Why each client's process ended, by the client's name, for the processes that have ended.
        self._ended: dict[str, str] = {}
        # How each node's last process ended. The root may first notice a broken link, which does not say how.
        self._ends: dict[str, str] = {}
        self.recovery = NodeRecovery(self, self._rounds.grace)
        # Decides which clients move from overloaded nodes to others; None: they stay. And its decisions that were not
        # read yet.
        self.balancer: LoadBalancer | None = None
        self._balances: list[Balance] = []
        # Where a user finds the nodes' log. Hints of errors name it.
        self.log = "the record's log.txt"

    @property
    def address(self) -> str:
        """The address to which nodes connect."""
        return self._server.address

    @property
    def addresses(self) -> dict[str, str]:
        """The address to which each client connects, once the nodes are open."""
        return {client: node.address for node in self._nodes for client in node.clients}

    def open(self, look: Callable[[], None]) -> None:
        """Wait until all nodes are connected, and have them listen. Calls ``look``, which may raise, while it waits.

        If a node is lost meanwhile, ``recovery`` starts it again if it can; otherwise the node's clients move to other
        nodes. Raises RoundError if a node cannot listen, or if no other node can take a lost node's clients.
        """
        began = time.monotonic()
        while not (self._there(WAIT_SLICE) and self._open(look)):
            look()
            # If the run does not start the nodes, another node may connect in place of a lost one, so only wait.
            for node in self._nodes if self.placed.clients else ():
                # A middle node that is connected may still wait for nodes below it.
                if node.loss is None or node.is_empty or self.is_connected(node, 0):
                    continue
                if not self.recovery.restart_while_awaited(node):
                    self._go_on_without(node)
        self.recovery.slowest_start = time.monotonic() - began

    def _go_on_without(self, node: Node) -> None:
        """Move the clients of a node that never opened to other nodes. Raises RoundError if a client gets no node."""
        left = {one.name: one for one in self._nodes if one is not node and not one.is_empty}
        homes: Mapping[str, str] = {}
        reasons: Sequence[str] = ()
        if left:
            homes, reasons = self._place(
                node.name, node.clients, {name: len(one.clients) for name, one in left.items()}
            )
        end = self._ends.get(node.name)
        loss = f"is gone: {end}" if end else node.loss
        why = f"{node.name} {loss}, before it was open"
        homeless = [client for client in node.clients if client not in homes]
        if homeless:
            no_room = "; ".join(reasons) or "there is no other node"
            raise RoundError(f"{why}; {homeless[0]} has no node: {no_room}", f"See {self.log}")
        self.note(f"{why}; its clients get other nodes")
        for client, home in homes.items():
            left[home].clients = [*left[home].clients, client]
            left[home].expected += bool(left[home].address)
        node.clients, node.is_empty = (), True
        self._count -= 1

    def _there(self, seconds: float) -> bool:
        """Wait at most ``seconds`` until enough nodes are connected; return whether enough are."""
        # Forget the refused nodes that have left: they may come back and try again.
        self._refused &= set(server_reports.clients(self._server))
        count = self._count + len(self._refused)
        if self._server.wait(count, seconds) < count:
            return False
        here = set(server_reports.clients(self._server))
        return not self.placed.clients or here.issuperset(node.name for node in self._nodes if not node.is_empty)

    def _open(self, look: Callable[[], None] | None) -> bool:
        """Have nodes listen; return whether all do.

        If the run did not start the nodes, a node that cannot listen is refused, and another may take its place.
        """
        start_themselves = not self.placed.clients
        if start_themselves:
            names = sorted(set(server_reports.clients(self._server)) - self._refused)[: self._count]
            present = {node.name: node for node in self._nodes if node.loss is None}
            self._nodes = [present.get(name) or Node(name, ()) for name in names]
        nodes = [node for node in self._nodes if not node.is_empty]
        for node in nodes:
            if node.loss is not None or not node.address:
                self._opening(node, look, may_fail=start_themselves)
        # Some nodes were refused, or have been lost again.
        if not all(node.loss is None and node.address for node in nodes):
            return False
        total = sum(node.expected for node in nodes)
        self._opened = True
        self.tell_homes()
        # A middle node does not know how many clients the job has.
        if start_themselves and self._kind != "middle" and total != self._rounds.expected:
            raise RoundError(
                f"the nodes wait for {number_of(total, 'client')} in all, and the job has {self._options['expected']}",
                "Start nodes with --clients that add up to job.clients",
            )
        return True

    def _opening(self, node: Node, look: Callable[[], None] | None, *, may_fail: bool) -> None:
        node.loss = None
        try:
            self.open_node(node, look)
        except LostNodeError:
            return  # it may come again
        except RoundError as error:
            if not may_fail:
                raise
            self._refused.add(node.name)
            self.note(str(error))
        else:
            self.recovery.has_come(node)

    def open_node(self, node: Node, look: Callable[[], None] | None = None) -> int:
        """Have a node listen; return for how many clients. A node that listened earlier uses the same address again.

        If the root knows no clients of the node, the node says how many it has. Raises RoundError if the node cannot
        listen.
        """
        options: CoreOptions = {**self._options, "expected": len(node.clients), "enough": 1, "sums": True}
        # Clients hear that an update was accepted only once its node's sums count here.
        options["withhold"] = True
        spare = self._choose is None or self._goal is None or self._choose > self._goal
        admits = True if self._goal is not None and spare else None
        # A node does not know how many updates the others have. If the root admits updates, it says whether they are
        # enough. If all are needed, the node need not know.
        options["outage"] = self._rounds.outage if admits else 0.0
        if self._needs_all:
            options["grace"] = max(self._rounds.grace, self._rounds.outage)
        if not node.clients:
            del options["expected"]
        top = None if self._is_top else TopOptions(self._kind, self._of_top, self._between)
        request = Open(options, node.address or None, self._model.layout.tensors, top, admits)
        (received,) = self._ask(request, [node], look)
        if received.head is None:
            # A node that is not open yet waits for nodes below it.
            kind = LostNodeError if received.is_lost or received.is_unopened else RoundError
            raise kind(f"{node.name} cannot be a node: {received.reason}", f"See {self.log}")
        node.address, node.peers = received.head.address, received.head.peers or ""
        node.reached = received.head.reached or ""
        node.expected = received.head.expected
        self.note(f"{node.name} listens on {node.address} for {number_of(node.expected, 'client')}")
        return node.expected

    def is_connected(self, node: Node, seconds: float) -> bool:
        """Return whether a node is connected, after waiting for it at most ``seconds``."""
        if seconds:
            self._server.wait(self._count, seconds)
        return node.name in server_reports.clients(self._server)

    def reopen(self, node: Node) -> bool:
        """Have a connected node listen again if it does not, as a restarted process; return whether it listens.

        A middle node may still wait for nodes below it. Raises RoundError if the node cannot listen.
        """
        if self._ask_one(Wait(0.0), node).head is None:
            try:
                self.open_node(node)
            except LostNodeError:
                return False
        return True

    def await_clients(self, nodes: Sequence[Node], seconds: float) -> None:
        """Wait at most ``seconds`` until the clients of these nodes are connected."""
        self._ask_all(Wait(seconds), nodes)

    def tell_homes(self) -> None:
        """Tell all connected nodes at which node each client belongs, so that they can redirect a moved client."""
        running, counted = self._running, dict(self._counted)
        if running is not None:
            counted |= dict.fromkeys(running.counting(), self._number)
        self._ask_all(placement.notice(self._nodes, self._moved, counted), self._here())

    @property
    def can_move_clients(self) -> bool:
        """Whether clients of a lost node may go on at another one."""
        return self._place is not placement.stay

    def move_clients(self, node: Node) -> list[Node]:
        """Move the clients of a lost node to other nodes; return those nodes. The list is empty if no client moved.

        The moved clients take part from the next round on. If this round's sums contain a moved client's update, the
        new node confirms that update.
        """
        left = {one.name: one for one in self._here() if one.reached}
        clients = [client for client in node.clients if client not in self._ended]
        if not left or not clients or not node.reached:
            return []
        homes, reasons = self._place(node.name, clients, {name: one.expected for name, one in left.items()})
        for client, home in homes.items():
            self._moved[client] = self._number
            left[home].clients = [*left[home].clients, client]
            left[home].expected += 1
        # Keep the clients whose processes have ended at some node, because outcomes still name them.
        kept = [client for client in clients if client not in homes]
        if homes and not kept:
            first = left[next(iter(homes.values()))]
            first.clients = [*first.clients, *(client for client in node.clients if client in self._ended)]
            node.is_empty = True
        node.clients = kept
        hosts = [one for name, one in left.items() if name in homes.values()]
        for host in hosts:
            arrived = ", ".join(client for client, home in homes.items() if home == host.name)
            self.note(f"{node.name} does not come back; these go on at {host.name}: {arrived}")
        for reason in reasons if hosts else ():
            self.note(reason)
        if hosts:
            self.tell_homes()
        return hosts

    def _balance(self) -> None:
        """Move clients away from overloaded nodes, if a decision is due. No round may be under way.

        So no node holds an update of a client that moves, and each client is asked by one node in each round.
        """
        here = [node for node in self._here() if node.address]
        balance = None if self.balancer is None else self.balancer.decide(here, self._ended.keys())
        if balance is None:
            return
        self._balances.append(balance)
        self.note(balance_in_words(wire.values_of(balance)))
        nodes = {node.name: node for node in here}
        for move in balance.moves:
            source, target = nodes[move.source], nodes[move.target]
            self._moved[move.client] = self._number
            source.clients = [client for client in source.clients if client != move.client]
            target.clients = [*target.clients, move.client]
            source.expected, target.expected = source.expected - 1, target.expected + 1
        if balance.moves:
            self.tell_homes()
            self.await_clients(
                [nodes[name] for name in sorted({move.target for move in balance.moves})], self._rounds.grace
            )
            self._give_back(balance.moves, nodes)

    def _give_back(self, moves: Sequence[Move], nodes: Mapping[str, Node]) -> None:
        """Give clients that have not reached their new node back to the node that they left, and let them stay there.

        A client may be unable to reach the new node. Or its process may have ended, which only the old node knows.
        """
        away = [move for move in moves if move.client not in nodes[move.target].connected]
        for move in away:
            source, target = nodes[move.source], nodes[move.target]
            target.clients = [client for client in target.clients if client != move.client]
            source.clients = [*source.clients, move.client]
            source.expected, target.expected = source.expected + 1, target.expected - 1
            if self.balancer is not None:
                self.balancer.stays.add(move.client)
        if away:
            self.note(f"did not reach the new node and stay where they were: {listed([move.client for move in away])}")
            self.tell_homes()
            self.await_clients([nodes[name] for name in sorted({move.source for move in away})], self._rounds.grace)

    def balances(self) -> list[Balance]:
        """Return the decisions since the last call: which clients moved from overloaded nodes, and why."""
        balances, self._balances = self._balances, []
        return balances

    def wait(self, clients: int, timeout: float | None) -> int:
        """Wait at most ``timeout`` seconds until each node's clients are connected; return how many are connected."""
        del clients  # each node waits for its own
        seconds = WAIT_SLICE if timeout is None else timeout
        if not self._opened and not (self._there(seconds) and self._open(None)):
            return 0
        self.recovery.look(self._nodes)
        if not self.recovery.is_waiting:
            self.recovery.settle(self._nodes, _nothing)
        self._ask_all(Wait(seconds), self._here())
        if not self.placed.clients:
            before = [list(node.clients) for node in self._nodes]
            for node in self._here():
                node.clients = sorted({*node.clients, *self._new_clients(node)})
            if before != [list(node.clients) for node in self._nodes]:
                self.tell_homes()
        return len(self._connected())

    def _new_clients(self, node: Node) -> list[str]:
        """Return the clients that a node names, except other nodes' clients and those whose proofs it cannot give."""
        others = {client for other in self._nodes for client in other.clients}
        new = [client for client in node.connected if client not in others]
        unproven = self.unproven(node, new)
        for client in unproven:
            if client not in node.unproven and len(node.unproven) < node.expected:
                node.unproven.add(client)
                self.note(f"{node.name} names {client}, and has no proof that it is there: it does not count")
        return sorted(set(new) - set(unproven))

    @property
    def _needs_all(self) -> bool:
        """Whether a round needs the updates of all clients of the job."""
        rounds = self._rounds
        return self._choose is None and rounds.expected is not None and rounds.enough >= rounds.expected

    @property
    def _is_top(self) -> bool:
        """Whether the nodes' sums meet here, and not at one of the nodes."""
        return self._kind in ("dedicated", "middle")

    def round(self, number: int, config: str, observer: Callable[[str], None] | None) -> str:
        """Run a round on all nodes and write the mean of their sums to the model; return the outcome as JSON.

        Raises RoundError if the round has too few updates, CoreError if the sums have no mean. If ``observer`` raises,
        the round ends with that error.
        """
        return wire.encode(self.run_round(number, config, observer)[0])

    def run_round(
        self,
        number: int,
        config: str,
        observer: Callable[[str], None] | None,
    ) -> tuple[Outcome, Done]:
        """Run a round as ``round`` does; return the outcome and how the round ended."""
        look = None if observer is None else lambda: observer('{"clients": {}}')
        self.end_confirming(look or _nothing)
        self.recovery.settle(self._nodes, look or _nothing)
        self._balance()
        self._number = number
        started, began = time.time(), time.perf_counter()
        self._node_log.begin()

        def tend() -> None:
            self.recovery.look(self._nodes)
            (look or _nothing)()

        here = self._here()
        try:
            done = self._run(number, config, tend)
        except BaseException:
            # Nodes may have written parts of a mean that does not count to their models.
            self.replaced()
            self._begin_confirming(number, counts=False)
            raise
        self._fates.add(number, done.parts)
        self._begin_confirming(number, counts=True)
        self._version = next(self._versions)
        for node in here:
            node.has = self._version if node.name in done.mean.has else None
        outcome = merged(
            number, done.parts, started - self.zero, time.perf_counter() - began, done.mean, between=done.between
        )
        wanted = self._wanted
        if wanted is not None:
            counted = sum(part.counted for part in done.parts)
            outcome = replace(outcome, expected=wanted, complete=counted == wanted)
        return outcome, done

    @property
    def _wanted(self) -> int | None:
        """How many updates a round counts; None: as many as there are."""
        return self._choose if self._goal is None else self._goal

    def confirm(self, number: int, counts: bool, left_out: AbstractSet[str]) -> None:
        """Tell the nodes whether their sums of a round count, and wait until they know it.

        The updates of the clients ``left_out`` do not count in any case.
        """
        for request, nodes in self._fates.requests(number, left_out, self._here(), counts=counts):
            self._ask_all(request, nodes)

    def _begin_confirming(self, number: int, *, counts: bool) -> None:
        """Tell the nodes what became of a round while the job goes on. A middle node waits for its parent's word."""
        if self._kind == "middle":
            return

        def tell() -> None:
            with suppress(_core.CoreError):  # the job is ending
                self.confirm(number, counts, set())

        self._confirming = threading.Thread(target=tell, daemon=True)
        self._confirming.start()

    def end_confirming(self, look: Callable[[], None], seconds: float = float("inf")) -> None:
        """Wait at most ``seconds`` until the nodes know what became of the last round. Calls ``look`` meanwhile."""
        until = time.monotonic() + seconds
        while self._confirming is not None and self._confirming.is_alive() and time.monotonic() < until:
            self._confirming.join(WAIT_SLICE)
            look()

    def replaced(self) -> None:
        """Note that the model in the arena is no longer the last round's mean, so that every node is sent it."""
        self._version = next(self._versions)

    def _run(self, number: int, config: str, tend: Callable[[], None]) -> Done:
        rounds, draw, wanted = self._rounds, None, self._wanted
        if wanted is not None:
            deadline = None if rounds.deadline is None else round(1e6 * rounds.deadline)
            draw = Draw(wanted, self._choose, rounds.seed, deadline, round(1e6 * rounds.grace))
        plan = RoundPlan(
            number=number,
            config=config,
            top=self._kind,
            enough=rounds.enough,
            draw=draw,
            placed=bool(self.placed.clients),
            proofs=self._proofs.keys.are_set,
            only=None if self._only is None else tuple(sorted(self._only)),
        )
        self._running = RunningRound(self, self._server, self._model, self._version, plan=plan, top=self._of_top)
        try:
            done = self._running.run(tend)
            self._counted |= dict.fromkeys(self._running.counting(), number)
            return done
        finally:
            self._running = None

    def table(self) -> str:
        """Return the nodes in the form that the core's round takes, as JSON."""
        return wire.encode([node.table(self._version) for node in self._nodes])

    def ended(self) -> set[str]:
        """Return the clients whose processes have ended."""
        return set(self._ended)

    def node(self, name: str) -> Node:
        """Return the node of this name."""
        return next(node for node in self._nodes if node.name == name)

    def unproven(self, node: Node, clients: Sequence[str]) -> list[str]:
        """Ask a node for the missing proofs of these clients; return the clients that still have none."""
        return self._proofs.unproven(node, clients)

    def departed(self) -> str:
        """Return clients that are not connected any more, as JSON: name, why, and whether it left for good."""
        gone: list[tuple[str, str, bool]] = []
        homes = {client: node for node in self._nodes for client in node.clients}
        for node in self._nodes:
            if node.loss is not None:
                gone += [Departure(client, node.reason, False) for client in node.clients]
            elif node.state is not None:
                # A client that has moved to another node is not gone.
                gone += [one for one in node.state.departed if homes.get(one[0], node) is node]
        return wire.encode(gone)

    def resent(self, timeout: float) -> str:
        """Return the segments retransmitted at each node, and between the root and all of them, as JSON by node.

        The counts are null for a lost node, and for a node that was started again, because its first process has not
        reported its counts. ``down`` counts the listening end's segments.

        Each node waits at most ``resent.COUNT_SECONDS``.
        """
        counts = {node.name: ResentCounts() for node in self._nodes}
        for received in self._ask(Resent(), self._here(), None):
            if received.head is not None:
                counts[received.node.name] = ResentCounts(received.head.down, received.head.up)
        # Nodes use only TCP, whose segments can always be counted. So a node without a count has sent nothing.
        own = counted(self._server, lambda: server_reports.departed(self._server), ())
        return wire.encode({**counts, "": own})

    def forget(self, client: str, why: str = "") -> None:
        """Wait no more for a client whose process has ended."""
        self._ended[client] = why
        nodes = [node for node in self._here() if client in node.clients]
        if nodes and not self._closed:
            self._ask_all(ForgetClient(client, why), nodes)

    def lost(self, name: str, why: str) -> None:
        """Stop waiting for a node whose process has ended. Until it returns or they move, its clients are lost too."""
        node = self.node(name)
        self.recovery.lost(node)
        self._ends[name] = why
        node.loss = f"is gone: {why}"
        if self._closed:
            return
        self._server.forget(name, why)
        if not self._is_top and self._opened:
            self._ask_all(ForgetNode(name, why), self._here())

    def clients(self) -> str:
        """Return the names of the connected clients, as JSON. A client counts only at the node that it belongs to."""
        return wire.encode(self._connected())

    def _connected(self) -> list[str]:
        named = ((name, node) for node in self._here() for name in node.connected)
        return sorted(name for name, node in named if name in node.clients)

    def notes(self) -> list[str]:
        """Return what happened since the last call."""
        with self._lock:
            notes, self._notes = self._notes, []
        return [] if self._closed else [*self._server.notes(), *notes]

    def worker_counters(self) -> dict[str, answers.Workers]:
        """Return the counters of workers, from their node's last answer, by the node's name.

        The root's own nodes are in it unless they are lost. Middle nodes pass on those of all nodes below them.
        """
        return self._counters_of(self._here())

    def tree(self) -> str | None:
        """Return the merged counters of all nodes' workers so far, as JSON."""
        counters = list(self._counters_of(self._nodes).values())
        # Below middle nodes clients stay where they were placed.
        homes = self.placed.clients if self.placed.above else {node.name: node.clients for node in self._nodes}
        used = [NodeClients(name, len(clients)) for name, clients in homes.items()]
        gateways = {node.name: None if node.state is None else node.state.cpu_seconds for node in self._nodes}
        return wire.encode(workers(counters, used, top=self._kind, cpu_seconds=gateways))

    def close(self, reason: str) -> None:
        """Tell all nodes that the job is over, and stop. Idempotent."""
        self.end_confirming(_nothing, CONFIRM_SECONDS)
        self._closed = True
        self._server.close(reason)

    def _counters_of(self, nodes: Sequence[Node]) -> dict[str, answers.Workers]:
        states = {node.name: node.state for node in nodes if node.state is not None}
        below = {name: counters for state in states.values() for name, counters in (state.below or {}).items()}
        # What a node says of itself counts more than what a middle node says of it.
        return below | {name: state.tree for name, state in states.items() if state.tree is not None}

    def _here(self) -> list[Node]:
        return [node for node in self._nodes if node.loss is None]

    def _ask_one(self, request: Request[AnyAnswer], node: Node) -> Received[AnyAnswer]:
        (received,) = self._ask(request, [node], None)
        return received

    def note(self, text: str) -> None:
        """Add a line to the notes."""
        with self._lock:
            self._notes.append(text)

    def _ask_all(self, request: Request[Any], nodes: Sequence[Node]) -> None:
        for _ in self._ask(request, nodes, None):
            pass

    def _ask(
        self,
        request: Request[AnyAnswer],
        nodes: Sequence[Node],
        look: Callable[[], None] | None,
    ) -> Iterator[Received[AnyAnswer]]:
        """Send nodes a request; yield the answers in the order in which they arrive."""
        by_name = {node.name: node for node in nodes}
        for reply in ask(self._server, request, list(by_name), look=look):
            yield self.received(by_name[reply.member], reply, request)

    def received(self, node: Node, reply: Reply, request: Request[AnyAnswer]) -> Received[AnyAnswer]:
        """Return a node's answer if it fits its schema; otherwise mark the node as lost."""
        if reply.is_lost and node.loss is None:
            node.loss = f"is gone: {reply.reason}"
        if reply.is_unopened:
            node.loss = "was started anew"
            node.proven.clear()
            return Received(node, None, None, node.reason, reply.between, is_unopened=True)
        head, reason = None, reply.reason
        try:
            head = None if reply.head is None else request.read(reply.head)
        except JsonError as error:
            reason = str(error)
        if head is None and (reply.head is not None or reply.is_senseless):
            node.loss = node.loss or f"was dropped: {reason}"
            return Received(node, None, None, reason, reply.between)
        if isinstance(head, answers.State):
            node.state = head
            for line in self._node_log.lines(node, head.notes):
                self.note(line)
        return Received(node, head, reply.tensors, reason, reply.between, reply.is_lost)


def tree_of(
    plan: Plan,
    model: _core.Arena,
    served: CoreOptions,
    trust: Trust,
    url: str,
    *,
    address: str | None = None,
) -> Tree:
    """Return the root of a plan's tree. ``served`` are the options that a server without nodes would use for clients.

    The root listens at any port of ``address`` if the run starts the nodes, otherwise at ``url``. Nodes and root always
    connect by TCP, whatever clients use, because sums must arrive whole.
    """
    nodes = live.placed(plan) if address is not None or plan.nodes is None else plan.nodes.count
    own = chosen(served, ("token", "issuer", "revoked", "job", "liveness", "grace"))
    own |= {"transport": {"tls": trust.tls}, "tree": True}
    below = chosen(served, served.keys() - {"token", "issuer", "revoked", "choose", "goal"})
    below["transport"] = {**served["transport"], "tls": None}
    where = EVERYWHERE if is_spread(plan) else address
    listen = f"tcp://{url.partition('://')[2]}" if address is None else f"tcp://{where}:0"
    has_middle = isinstance(nodes, live.Placed) and bool(nodes.above)
    top, place = (plan.tree or TreeSection()).top, placement.stay if has_middle else placement.placing(plan)
    rounds = wire.made(RoundOptions, served)
    tree = Tree(model, listen, nodes, below, own, top=top, place=place, choose=rounds.choose, goal=rounds.goal)
    tree.recovery.away = (plan.nodes or NodesSection()).away
    balancing = rules(plan)
    tree.balancer = None if balancing is None else LoadBalancer(balancing)
    return tree


def _nothing() -> None:
    """Do nothing: used in place of a round's observer."""


def _of_top(options: CoreOptions) -> CoreOptions:
    """Return those of a server's options that a top needs too.

    They are the sums' precision, stand-ins, the seed, and the layers, which say whether updates are differences.
    """
    return chosen(options, ("precision", "repair", "seed", "layers"))
