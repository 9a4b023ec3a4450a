"""A node of an aggregation tree: a server to its clients, whose workers fold, and a member of its parent's tasks.

A node may have nodes below it instead of clients (``thalweg.job.tree.middle``).

``python -m thalweg.job.tree.node`` is a node of ``thalweg run``; it reads its order from standard input as
``thalweg.job.star.worker`` does.

The tasks from ``gone`` on concern other nodes, and only nodes without a dedicated top get them. The core carries them
out (``_core.TreeExchange``; the rules are in ``crates/proto/src/tree/node``).

| task | the node | and answers |
|---|---|---|
| ``open`` | listens for clients with these options, for a model of this layout | where it listens |
| ``wait`` | waits until its clients are connected, but not longer than asked | which clients are connected |
| ``round`` | runs a round with the model that comes with it | the outcome, and the round's sums |
| ``admit`` | folds the updates of these clients in a round's batch | which updates have arrived |
| ``resent`` | counts retransmitted segments, when the rounds are over | how many segments |
| ``proofs`` | looks up the proofs that its clients have shown | these proofs |
| ``forget`` | waits no more for a client | nothing |
| ``homes`` | learns at which node each client belongs, and redirects clients that are at the wrong node | nothing |
| ``confirm`` | tells its clients which updates of a round count at the top | nothing |
| ``gone`` | waits no more for another node | nothing |
| ``lead`` | is the top of this round, beginning with its own sums | nothing, or why not |
| ``give`` | lets the node at an address take the sums of its own rounds | nothing |
| ``take`` | takes the sums of another node | nothing, or why they were refused |
| ``finish`` | computes the mean of all sums that it has | the fold's report, and the model |
| ``share`` | takes the sums of its part of the bytes from all other nodes | the nodes whose sums were refused |
| ``settle`` | computes the mean of its part, and sends it to all others | the fold's report, and its part of the model
|
| ``told`` | waits until all other nodes have its part of the mean | the nodes that have it |

A ``round`` with ``kept`` brings no model, because the nodes have sent all parts of it to each other.

A node that was started anew answers ``{"unopened": true}`` until it is opened.
"""

from __future__ import annotations

import base64
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from thalweg import _core, bounded_json, machine, wire
from thalweg.errors import RoundError
from thalweg.job.common import server_reports
from thalweg.job.common.farewell import farewell, reason
from thalweg.job.common.messages import Note
from thalweg.job.common.resent import counted, totals
from thalweg.job.common.server_reports import ResentCounts
from thalweg.job.star import worker
from thalweg.job.tree import messages, placement
from thalweg.job.tree.messages import (
    Admit,
    AssignClients,
    Confirm,
    ForgetClient,
    Open,
    Proofs,
    Request,
    Resent,
    Round,
    TopOptions,
    Wait,
)
from thalweg.job.tree.middle import MiddleNode
from thalweg.job.tree.order import Listening, NodeOrder
from thalweg.machine.waiting import WAIT_SLICE
from thalweg.outcome import core as core_outcome
from thalweg.plan.options import CoreOptions
from thalweg.transports import registry
from thalweg.trees import answers, live
from thalweg.trees.counters import Workers
from thalweg.ui.phrases import number_of
from thalweg.wire import Table

# A node's answer: a head, and perhaps an arena.
Answer: TypeAlias = "tuple[answers.Form, _core.Arena | None]"
# Requests about a node's clients.
AboutClients: TypeAlias = ForgetClient | AssignClients | Confirm | Proofs | Resent | Wait
# What runs a node's rounds.
Serving: TypeAlias = "_core.Server | MiddleNode"


class Gateway:
    """A node as its parent sees it."""

    def __init__(self, order: NodeOrder, note: Note, listens: Callable[[str], None] = lambda _address: None) -> None:
        """Begin to connect to the parent. Calls ``listens`` with the address where it listens. Raises CoreError."""
        self._name, self._member, self._note, self._listens = order.name, order.options, note, listens
        self._listen, self._trust, self._former = order.listen, order.trust, order.former
        self._advertise = order.advertise
        self._peers = f"tcp://{order.address}:0"
        self._parent = _core.TaskClient(order.url, self._name, wire.encode(self._member))
        self._server: Serving | None = None
        self._middle: MiddleNode | None = None
        self._nodes, self._away, self._known = order.nodes, order.away, order.known
        self._opened: tuple[Open, answers.Opened] | None = None
        self._exchange: _core.TreeExchange | None = None
        self._model: _core.Arena | None = None
        self._expected = order.clients
        # The node of each client; the clients drawn for the round; and for each client that was not drawn, the round's
        # number.
        self._homes = placement.ClientHomes()
        self._drawn: frozenset[str] = frozenset()
        self._undrawn: dict[str, int] = {}
        self._rounds = 0
        # Clients that sent an update; and whether this process has counted retransmissions since the job began.
        self._senders: set[str] = set()
        self._counts_all = True
        self._count: Callable[[core_outcome.Outcome], None] = lambda _outcome: None
        self._cpu = machine.cpu_seconds()

    @property
    def address(self) -> str | None:
        """The address where the node listens for clients; None until the parent has opened it."""
        return None if self._server is None else self._address

    def watch(self, count: Callable[[core_outcome.Outcome], None]) -> None:
        """Call ``count`` with the outcome of each round from now on."""
        self._count = count

    def clients(self) -> list[str]:
        """Return the names of the clients that are connected."""
        return [] if self._server is None else server_reports.clients(self._server)

    def worker_counters(self, name: str) -> dict[str, Workers]:
        """Return the counters of the node's workers under the key ``name``; empty if the node has no workers."""
        if self._middle is not None:
            return dict(self._middle.worker_counters())
        counters = None if self._server is None else self._server.tree()
        return {} if counters is None else {name: wire.decode(Workers, counters)}

    def serve(self) -> int:
        """Carry out the parent's requests until the job is over; return in how many rounds the node took part.

        Raises CoreError if the parent is gone for good.
        """
        with farewell(self._parent, "the node is done"):
            self._parent.join()
            self._serve()
        return self._rounds

    def _serve(self) -> None:
        try:
            while (event := self._parent.next()) is not None:
                what, number, head, _, arena, _, message = event
                if what == "task":
                    # In a thread of its own, so that the node learns during a round that a client is gone.
                    threading.Thread(target=self._answer, args=(number, head, arena), daemon=True).start()
                elif what == "rejected":
                    self._note(f"the parent refused an answer: {message}")
        finally:
            if self._exchange is not None:
                self._exchange.close("the job is over")
            for server in (self._middle, self._server):
                if server is not None:
                    server.close("the job is over")

    def _answer(self, number: int, head: bytes, model: _core.Arena | None) -> None:
        try:
            answer, sums = self._do(number, bounded_json.read_object(head), model)
        except Exception as error:  # noqa: BLE001 - the parent is told
            why = reason(error)
            if self._server is None:
                self._note(f"it cannot take part: {why}")
            self._say(lambda: self._parent.refuse(number, why))
            return
        self._say(lambda: self._parent.answer(number, wire.encode(answer).encode(), sums, 1.0))

    def _do(self, number: int, head: Table, model: _core.Arena | None) -> Answer:
        request, server = messages.decode(head), self._server
        if isinstance(request, Open):
            return self._open(request) if self._nodes is None else self._open_middle(request, self._nodes), None
        if server is None:
            return answers.Unopened(), None
        if request is None:
            raise _not_understood(str(head["do"]))
        if isinstance(request, (ForgetClient, AssignClients, Confirm, Proofs, Resent, Wait)):
            return self._about_clients(server, request), None
        if isinstance(request, Round):
            return self._round(server, number, request, None if request.kept else _given(model))
        if isinstance(request, Admit) and isinstance(server, _core.Server):
            return self._admit(server, number, request), None
        return self._among_nodes(request)

    def _about_clients(self, server: Serving, request: AboutClients) -> answers.Form:
        """Carry out a request that does not concern the model: about clients, their proofs or retransmissions."""
        if isinstance(request, Proofs):
            shown = server.proofs(list(request.clients))
            return answers.Proofs(proofs={name: base64.b64encode(proof).decode() for name, proof in shown})
        if isinstance(request, Wait):
            server.wait(self._expected, request.seconds)
            return self._state(server)
        if isinstance(request, Resent):
            counts = self._resent(server)
            return answers.Resent(down=counts.down, up=counts.up)
        if isinstance(request, Confirm):
            server.confirm(request.round, request.counts, set(request.left_out))
            return answers.Nothing()
        if isinstance(request, ForgetClient):
            server.forget(request.client, request.why)
            return answers.Nothing()
        self._expected, self._homes = placement.homes(self._name, request)
        if isinstance(server, _core.Server):
            server.place_clients(self._expected, self._placed())
        return answers.Nothing()

    def _admit(self, server: _core.Server, number: int, request: Admit) -> answers.Form:
        """Fold the updates of these clients; wait for news of updates while the parent waits for the answer."""
        text = wire.encode(request)
        while (arrivals := server.admit(text, WAIT_SLICE)) is None:
            self._check(number)
        return answers.Arrived(arrivals=wire.decode(tuple[tuple[str, bool], ...], arrivals))

    def _resent(self, server: Serving) -> ResentCounts:
        if not self._counts_all:
            return ResentCounts()
        if isinstance(server, MiddleNode):
            return server.resent_totals()
        own = counted(server, lambda: server_reports.departed(server), self._senders)
        exchange = self._exchange
        # The other nodes count the links on which this node joined them.
        if exchange is None or not server_reports.resent(exchange, 0.0):
            return own
        return totals([own, counted(exchange, lambda: server_reports.departed(exchange), ())])

    def _placed(self) -> str:
        """Return, as JSON, where clients belong. Clients that were not drawn are kept out of this round."""
        # A drawn client may take part at once: no node has asked it in this round.
        after = {**self._homes.after, **self._undrawn}
        kept = {client: last for client, last in after.items() if client not in self._drawn}
        return wire.encode({**self._homes.table(), "after": kept})

    def _draw(self, server: Serving, number: int, drawn: Sequence[str]) -> None:
        """Let only the clients ``drawn`` take part in the round that begins."""
        if isinstance(server, MiddleNode):
            return server.draw(drawn)
        others = {*self._homes.own, *server_reports.clients(server)} - set(drawn)
        self._drawn, self._undrawn = frozenset(drawn), dict.fromkeys(sorted(others), number)
        server.place_clients(len(drawn), self._placed())
        return None

    def _among_nodes(self, request: Request[Any]) -> Answer:
        if self._exchange is None:
            raise _not_understood(request.do)
        head, tensors = self._exchange.request(wire.encode(request).encode())
        return request.read(head), tensors

    def _open_middle(self, request: Open, nodes: int) -> answers.Form:
        """Open the nodes below; answer that this node is not open while some are missing."""
        if self._middle is None:
            self._counts_all = request.listen is None and self._former is None
            listen, away, known = self._former or self._listen, self._away, self._known
            self._middle = MiddleNode(request, listen, nodes, self._trust, away=away, known=known)
            self._note(f"listening on {self._middle.address} for {number_of(nodes, 'node')}")
            self._listens(self._middle.address)
        middle = self._middle
        if not middle.is_for(request):
            raise RoundError("this node is open for another job", "Stop it, and start it again for this one")
        if not middle.open_below(WAIT_SLICE):
            return answers.Unopened()
        self._server, self._model, self._address = middle, middle.model, middle.address
        self._expected = middle.expected_clients
        return answers.Opened(address=self._address, reached=None, peers=None, expected=self._expected)

    def _open(self, request: Open) -> answers.Opened:
        # A parent that was started anew opens a node that is open. Its clients go on.
        expected = request.options.get("expected")
        self._expected = expected if isinstance(expected, int) else self._expected
        if self._opened is not None and request.is_for_same_job(self._opened[0]):
            return replace(self._opened[1], expected=self._expected)
        transport, workers = (wire.part(request.options, name) for name in ("transport", "workers"))
        options = {
            **request.options,
            **self._trust.tokens,
            "transport": {**transport, "tls": self._trust.tls},
            "workers": {**workers, "command": live.command()},
            "expected": self._expected,
        }
        # If the node listened earlier, another process may have served it, whose counts are lost.
        before = request.listen or self._former
        self._counts_all = self._server is None and before is None
        if self._server is not None:
            self._server.close("the parent opens this node anew")
        layout = _core.Layout([(name, dtype, shape) for name, dtype, shape, _ in request.layout])
        self._model = _core.Arena(layout, shared=registry.lends(self._listen))
        self._server = server = self._listening(self._model, before, wire.encode(options))
        self._address = server.address
        self._note(f"listening on {self._address}")
        self._listens(self._address)
        if self._exchange is not None:
            self._exchange.close("the parent opens this node anew")
        self._exchange = None if request.top is None else self._exchange_of(request.top, server, self._model)
        peers = None if self._exchange is None else self._exchange.address
        reached = placement.reached(self._address, self._advertise)
        opened = answers.Opened(address=self._address, reached=reached, peers=peers, expected=self._expected)
        self._opened = request, opened
        return opened

    def _listening(self, model: _core.Arena, before: str | None, options: str) -> _core.Server:
        """Return a server that listens at the address ``before`` of this node's former process, if it can."""
        if before is not None:
            try:
                return _core.Server(model, before, options)
            except _core.CoreError as error:
                self._note(f"it cannot listen on {before} again, so its clients do not find it: {error}")
        return _core.Server(model, self._listen, options)

    def _exchange_of(self, top: TopOptions, server: _core.Server, model: _core.Arena) -> _core.TreeExchange:
        own: CoreOptions = {"transport": {"tls": self._trust.tls}, "tree": True, **self._trust.tokens, **top.server}
        options = {
            "name": self._name,
            "listen": self._peers,
            "kind": top.kind,
            "top": top.top,
            "server": own,
            "member": self._member,
        }
        return _core.TreeExchange(server, model, wire.encode(options))

    def _round(self, server: Serving, number: int, request: Round, model: _core.Arena | None) -> Answer:
        if self._exchange is not None:
            self._exchange.begin(request.round, kept=model is None)
        if model is not None:
            np.copyto(np.asarray(self._model), np.asarray(model))
        if request.only is not None:
            self._draw(server, request.round, request.only[self._name])
        # Use the wall clock, the only clock that nodes on several machines have in common.
        before = time.time()
        batch = {} if isinstance(server, MiddleNode) else {"batch": request.batch}
        text = server.round(request.round, request.config, lambda _: self._check(number), **batch)
        after, done = time.time(), wire.decode(answers.Outcome, text)
        self._rounds += 1
        self._senders |= {one.client for one in done.counting}
        self._count(done)
        sums = server.sums()
        if self._exchange is not None:
            self._exchange.ended(holds_sums=sums is not None)
        with_sums = sums is not None and self._exchange is None
        whole = done.fold.completion_seconds
        answer = answers.Round(
            **vars(self._state(server)),
            outcome=done,
            zero=before - done.start,
            first=None if whole is None else after - whole,
            held=sums is not None,
            sums=base64.b64encode(sums[0]).decode() if sums is not None and with_sums else None,
            between=tuple(server.between) if isinstance(server, MiddleNode) else (),
        )
        return answer, sums[1] if sums is not None and with_sums else None

    def _check(self, number: int) -> None:
        """Raise RoundError, which ends the round, if the parent does not wait for it any more."""
        if not self._parent.is_open(number):
            raise RoundError("the parent does not wait for this round any more", "Nothing is to be done")

    def _state(self, server: Serving) -> answers.State:
        """Return the node's state, which the parent gets with each answer."""
        tree = server.tree()
        return answers.State(
            clients=tuple(server_reports.clients(server)),
            departed=tuple(server_reports.departed(server)),
            notes=tuple(server.notes()),
            tree=None if tree is None else wire.decode(answers.Workers, tree),
            cpu_seconds=machine.cpu_seconds(self._cpu),
            below=server.counters_below() if isinstance(server, MiddleNode) else None,
        )

    def _say(self, say: Callable[[], None]) -> None:
        """Send the parent an answer. If the parent does not wait for it any more, only note that."""
        try:
            say()
        except _core.CoreError as error:
            self._note(f"an answer that nobody waits for: {error}")


def _given(model: _core.Arena | None) -> _core.Arena:
    if model is None:
        raise RoundError("the task came without a model", "Use the same version on both sides")
    return model


def _not_understood(requested: str) -> RoundError:
    return RoundError(f"this node was not opened for {requested!r}", "Use the same version on both sides")


def take_orders(order: NodeOrder, note: Note) -> None:
    """Be a node of a run, as its order says. Raises CoreError."""
    Gateway(order, note, tell_run).serve()


def tell_run(address: str) -> None:
    """Tell the run that started this process where the node listens."""
    print(wire.encode(Listening(address).table()), flush=True)  # noqa: T201 - the run reads it


def run() -> int:
    """Be a node's process. Returns the exit code."""
    return worker.main(lambda: (NodeOrder, take_orders))


if __name__ == "__main__":
    sys.exit(run())
