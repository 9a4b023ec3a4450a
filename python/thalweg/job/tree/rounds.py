"""A round at the root of a tree: carries messages between the core's machine and the nodes.

``_core.TreeRound`` decides which node is asked what, whose updates count and where the sums meet; the rules are in
``crates/proto/src/tree``. This module sends what it asks, hands it the answers, and moves the tensors that it names.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from thalweg import _core, wire
from thalweg.errors import RoundError
from thalweg.job.tree import messages, requests
from thalweg.job.tree.known import Node, Received
from thalweg.job.tree.messages import Request
from thalweg.machine.waiting import WAIT_SLICE
from thalweg.outcome.core import NodeShare
from thalweg.plan.options import CoreOptions
from thalweg.trees import answers
from thalweg.trees.answers import Transfer
from thalweg.trees.merging import Mean, Part, only_of

# What can be done about a round that too few updates reached.
TOO_FEW: Final = "If clients come back later, raise job.outage; if fewer updates will do, lower job.enough"


@dataclass(frozen=True)
class Draw:
    """How the clients of a round are drawn; times in microseconds. ``deadline``: no later batch begins after it.

    ``clients`` of them take part, None: all. ``goal`` of their updates count.
    """

    goal: int
    clients: int | None
    seed: int
    deadline: int | None
    grace: int


@dataclass(frozen=True)
class RoundPlan:
    """Settings of the core's round. ``placed``: the root placed the clients; ``proofs``: clients must prove."""

    number: int
    config: str
    top: str
    enough: int
    draw: Draw | None
    placed: bool
    proofs: bool
    # The clients that the parent of a middle node has drawn; None: all take part.
    only: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Ask:
    """A step of the core's round: send these nodes a request, and the model if ``model``."""

    ask: int
    request: dict[str, Any]
    nodes: tuple[str, ...]
    model: bool


@dataclass(frozen=True)
class Prove:
    """A step: check the proofs of a node's clients."""

    part: int
    node: str
    clients: tuple[str, ...]


@dataclass(frozen=True)
class Merge:
    """A step: merge the sums that came with a node's answer, of which ``claim`` is stated."""

    part: int
    ask: int
    node: str
    claim: tuple[int, float, bool]


@dataclass(frozen=True)
class Finish:
    """A step: compute the mean of the merged sums."""


@dataclass(frozen=True)
class Export:
    """A step: keep the merged sums for the parent."""


@dataclass(frozen=True)
class Write:
    """A step: write nodes' tensors to the model; for each the node, the first byte and the one after the last."""

    ask: int
    parts: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class PartOutcome:
    """What became of a node's part: its ``state`` is "counts", "empty" or "dropped"."""

    node: str
    clients: tuple[str, ...]
    ask: int | None
    state: str
    reason: str


@dataclass(frozen=True)
class MeanMade:
    """What the core's round knows of the mean."""

    uncovered_bytes: int | None
    done: float
    top: str | None
    shares: tuple[tuple[str, int], ...] | None
    has: tuple[str, ...]


@dataclass(frozen=True)
class Over:
    """A step: the round is over."""

    parts: tuple[PartOutcome, ...]
    mean: MeanMade


@dataclass(frozen=True)
class Failed:
    """A step: the round has failed."""

    reason: str


STEPS: Final[Mapping[str, type[Any]]] = {
    "ask": Ask,
    "prove": Prove,
    "merge": Merge,
    "finish": Finish,
    "export": Export,
    "write": Write,
    "over": Over,
    "failed": Failed,
}


@dataclass(frozen=True)
class Done:
    """A round that is over: the nodes' parts, the mean, and the transfers between root and nodes.

    A middle node has no mean, but the ``sums`` for its parent, a head and cells, if there are updates in them.
    """

    parts: Sequence[Part]
    mean: Mean
    between: Sequence[Transfer]
    sums: tuple[bytes, _core.Arena] | None = None


class Root(Protocol):
    """The root's methods that a round calls."""

    log: str
    # The wall clock's time at which the root's clock began.
    zero: float

    def table(self) -> str:
        """Return the nodes in the form that the core's round takes, as JSON."""

    def ended(self) -> set[str]:
        """Return the clients whose processes have ended."""

    def node(self, name: str) -> Node:
        """Return the node of this name."""

    def received(self, node: Node, reply: requests.Reply, request: Request[Any]) -> Received[Any]:
        """Return a node's answer if it fits its schema; otherwise mark the node as lost."""

    def unproven(self, node: Node, clients: Sequence[str]) -> list[str]:
        """Ask a node for the missing proofs of these clients; return the clients that still have none."""


class RunningRound:
    """A round that is under way. Other threads may call ``counting``."""

    def __init__(
        self,
        root: Root,
        server: _core.TaskServer,
        model: _core.Arena,
        version: int,
        *,
        plan: RoundPlan,
        top: CoreOptions,
    ) -> None:
        """Begin a round. ``version`` is that of the model; ``top`` are the core's options of a dedicated top."""
        self._root, self._server, self._model, self._version = root, server, model, version
        self._top = _core.Top(model, wire.encode(top)) if plan.top in ("dedicated", "middle") else None
        self._sums: tuple[bytes, _core.Arena] | None = None
        self._has_batches = plan.draw is not None
        self._table = root.table()
        self._round = _core.TreeRound(time.monotonic(), model.layout, wire.encode(plan), self._table)
        self._ended = root.ended()
        self._round.update(time.monotonic(), self._table, self._ended)
        # The request and its number, by the number of its task.
        self._tasks: dict[int, tuple[int, Request[Any]]] = {}
        self._reports: dict[tuple[int, str], answers.Round] = {}
        self._tensors: dict[tuple[int, str], _core.Arena] = {}
        self._between: list[Transfer] = []

    def counting(self) -> list[str]:
        """Return the clients whose updates count so far."""
        return self._round.counting()

    def run(self, tend: Callable[[], None]) -> Done:
        """Run the round to its end. Calls ``tend``, which may raise, several times a second.

        Raises RoundError if the round fails, CoreError if the sums have no mean.
        """
        try:
            while True:
                while (text := self._round.next_step()) is not None:
                    step = wire.decode(STEPS[wire.plain(text)["step"]], text)
                    if isinstance(step, Over):
                        return self._done(step)
                    self._perform(step)
                self._await(tend)
        finally:
            for task in self._tasks:
                self._server.release(task)

    def _await(self, tend: Callable[[], None]) -> None:
        """Wait for the next reply, for the round's timer, or for a fraction of a second."""
        timer, now = self._round.timer(), time.monotonic()
        seconds = WAIT_SLICE if timer is None else min(WAIT_SLICE, max(0.0, timer - now))
        try:
            task, reply = self._server.next_reply_of(list(self._tasks), seconds)
        except _core.CoreError as error:
            if error.kind != "timeout":
                raise
            tend()
            self._update()
            if timer is not None and time.monotonic() >= timer:
                self._round.timeout(time.monotonic())
            return
        if reply is None:
            self._server.release(task)
            del self._tasks[task]
        else:
            ask, request = self._tasks[task]
            self._take(ask, request, requests.reply_of(reply))

    def _update(self) -> None:
        table, ended = self._root.table(), self._root.ended()
        if (table, ended) != (self._table, self._ended):
            self._table, self._ended = table, ended
            self._round.update(time.monotonic(), table, ended)

    def _take(self, ask: int, request: Request[Any], reply: requests.Reply) -> None:
        """Hand a node's answer to the round, or the reason why there is none."""
        node = self._root.node(reply.member)
        received = self._root.received(node, reply, request)
        self._between += [*received.between, *getattr(received.head, "between", ())]
        reason = received.reason
        if received.head is not None and reply.head is not None:
            if isinstance(received.head, answers.Round):
                self._reports[ask, node.name] = received.head
            if received.tensors is not None:
                self._tensors[ask, node.name] = received.tensors
            size = None if received.tensors is None else len(received.tensors)
            try:
                return self._round.answered(time.monotonic(), ask, node.name, reply.head, size)
            except _core.CoreError as error:
                reason = error.cause
                node.loss = node.loss or f"was dropped: {reason}"
        self._update()
        return self._round.unanswered(time.monotonic(), ask, node.name, reason, node.loss)

    def _perform(self, step: object) -> None:
        if isinstance(step, Ask):
            self._ask(step)
        elif isinstance(step, Prove):
            unproven = self._root.unproven(self._root.node(step.node), step.clients)
            self._round.proven(time.monotonic(), step.part, unproven[0] if unproven else None)
        elif isinstance(step, Merge):
            self._round.merged(time.monotonic(), step.part, self._merged(step))
        elif isinstance(step, Finish) and self._top is not None:
            fold = wire.decode(answers.MeanFold, self._top.finish())
            self._round.finished(wire.encode(answers.Mean(fold=fold, done=time.time())))
        elif isinstance(step, Export) and self._top is not None:
            self._sums = self._top.export()
            self._round.exported()
        elif isinstance(step, Write):
            model = np.asarray(self._model)
            for node, start, end in step.parts:
                model[start:end] = np.asarray(self._tensors.pop((step.ask, node)))[: end - start]
        elif isinstance(step, Failed):
            raise RoundError(step.reason, f"{TOO_FEW}; see {self._root.log} for who was lost, and why")

    def _ask(self, step: Ask) -> None:
        request = messages.decode(step.request)
        if request is None:
            raise RoundError(f"the core asks for {step.request['do']!r}", "Build the core anew")
        arena, version = (self._model, self._version) if step.model else (None, 0)
        task = self._server.open(wire.encode(request).encode(), arena, version, list(step.nodes), None, None, None)
        self._tasks[task] = step.ask, request

    def _merged(self, step: Merge) -> str | None:
        """Merge the sums that a node has sent; return why they were refused, or None."""
        cells, report = self._tensors.pop((step.ask, step.node), None), self._reports.get((step.ask, step.node))
        if self._top is None or cells is None or report is None or report.sums is None:
            return "it has sent none"
        try:
            self._top.merge(base64.b64decode(report.sums), cells, *step.claim)
        except (_core.CoreError, ValueError) as error:
            return str(error)
        return None

    def _done(self, over: Over) -> Done:
        parts = [self._part(part) for part in over.parts]
        made, shares = over.mean, over.mean.shares
        mean = Mean(
            made.uncovered_bytes,
            made.done if self._sums is None else time.time(),
            made.top,
            None if shares is None else tuple(NodeShare(node, size) for node, size in shares),
            made.has,
        )
        return Done(parts, mean, self._between, self._sums)

    def _part(self, part: PartOutcome) -> Part:
        report = None if part.ask is None else self._reports.get((part.ask, part.node))
        if report is None or part.state == "dropped":
            return Part(part.node, part.clients, reason=part.reason)
        outcome = report.outcome
        if self._has_batches:
            # Clients that have gone on in a later batch are in that batch's outcome too.
            outcome = only_of(outcome, part.clients)
        return Part(part.node, part.clients, outcome, part.reason, report.zero - self._root.zero, report.first)
