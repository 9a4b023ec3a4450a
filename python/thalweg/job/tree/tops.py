"""The tops of a tree: the sums of its nodes are folded at the root, or at the first node that finishes its round."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol

import numpy as np

from thalweg import _core, wire
from thalweg.errors import RoundError
from thalweg.job.tree.messages import BecomeTop, ComputeMean, ReceiveSums, Request, SendSums
from thalweg.plan.options import CoreOptions
from thalweg.trees import answers
from thalweg.trees.answers import AnyAnswer, Transfer
from thalweg.trees.merging import Mean, Part


@dataclass
class Node:
    """A node as the root knows it: its clients, its addresses, and the state from its last answer."""

    name: str
    clients: Sequence[str]
    address: str = ""
    # The address at which other nodes' clients reach it; empty if it is not known.
    reached: str = ""
    # The address to which other nodes connect.
    peers: str = ""
    state: answers.State | None = None
    # How the node was lost, such as "is gone: killed by signal 9"; None while it is not lost.
    loss: str | None = None
    # The version of the model whose parts the node has received from other nodes.
    has: int | None = None
    # How many clients it waits for.
    expected: int = 0
    # Clients whose proofs it has passed on.
    proven: set[str] = field(default_factory=set)
    # Clients that it has named without a proof; the log says so once.
    unproven: set[str] = field(default_factory=set)
    # Whether all its clients have moved to other nodes, after it was lost.
    is_empty: bool = False

    @property
    def connected(self) -> Sequence[str]:
        """The clients that were connected to it at its last answer."""
        return () if self.state is None else self.state.clients

    @property
    def reason(self) -> str:
        """Why the node's clients take no part in a round; empty while the node is not lost."""
        return "" if self.loss is None else f"its node {self.name} {self.loss}"


@dataclass(frozen=True)
class Received(Generic[AnyAnswer]):
    """A node's answer. If ``head`` is None there is none, and ``reason`` says why. ``is_lost``: the node was lost."""

    node: Node
    head: AnyAnswer | None
    tensors: _core.Arena | None
    reason: str
    between: tuple[Transfer, ...]
    is_lost: bool = False


class Ask(Protocol):
    """Sends nodes a request; gives their answers in the order in which they arrive."""

    def __call__(self, request: Request[AnyAnswer], nodes: Sequence[Node]) -> Iterator[Received[AnyAnswer]]: ...


class Top(Protocol):
    """Folds the sums of a round's nodes."""

    def begin(self) -> None:
        """Forget the sums of the round before."""

    def take(self, part: Part, received: Received[answers.Round]) -> None:
        """Take the sums of a node that has finished its round. If they do not count, write the reason to ``part``."""

    def finish(self, check: Callable[[], None]) -> Mean:
        """Write the mean to the model, and return what is known about it.

        ``check`` raises if the mean has too few updates. Raises CoreError if the sums have no mean, RoundError if no
        node has them any more.
        """


class Dedicated:
    """The top is the root itself, which has no clients."""

    def __init__(self, model: _core.Arena, options: CoreOptions) -> None:
        self._top = _core.Top(model, wire.encode(options))

    def begin(self) -> None:
        self._top.forget()

    def take(self, part: Part, received: Received[answers.Round]) -> None:
        if received.head is None or received.tensors is None or received.head.sums is None:
            part.reason = part.reason or "it has no sums"
            return
        try:
            self._top.merge(base64.b64decode(received.head.sums), received.tensors, *part.statement)
        except (_core.CoreError, ValueError) as error:
            part.drop(f"the sums of its node {part.node} were refused: {error}")

    def finish(self, check: Callable[[], None]) -> Mean:
        check()
        fold = wire.decode(answers.MeanFold, self._top.finish())
        return Mean(fold.uncovered_bytes, time.time())


class FirstFinished:
    """The top is the first node that finishes its round. Other nodes send it their sums; it sends the root the mean.

    If that node is lost, the first of the remaining nodes takes its place. This works because each node keeps its sums
    until the next round.
    """

    def __init__(self, model: _core.Arena, ask: Ask) -> None:
        self._model, self._ask = model, ask
        self._leader: Node | None = None
        self._parts: list[tuple[Part, Node]] = []
        # Names of nodes whose sums the leader has.
        self._in: set[str] = set()

    def begin(self) -> None:
        self._leader, self._parts, self._in = None, [], set()

    def take(self, part: Part, received: Received[answers.Round]) -> None:
        if received.head is None or not received.head.held:
            part.reason = part.reason or "it has no sums"
            return
        self._parts.append((part, received.node))
        self._settle()

    def finish(self, check: Callable[[], None]) -> Mean:
        check()
        while self._leader is not None:
            leader = self._leader
            received = self._one(ComputeMean(), leader)
            if received.head is not None and received.tensors is not None and len(received.tensors) == len(self._model):
                np.copyto(np.asarray(self._model), np.asarray(received.tensors))
                self._add_between(leader, received)
                return Mean(received.head.fold.uncovered_bytes, received.head.done, top=leader.name)
            if leader.loss is None:
                raise RoundError(f"{leader.name} gives no model: {received.reason}", "See the record's log.txt")
            self._lost(leader, received.reason)
            self._settle()
            check()
        raise RoundError("no node has the round's sums any more", "See the record's log.txt for who was lost")

    def _settle(self) -> None:
        """Have one node, the leader, take the sums of all nodes whose parts count."""
        while left := [pair for pair in self._parts if pair[0].outcome is not None and pair[1].name not in self._in]:
            part, node = left[0]
            if self._leader is None:
                led = self._one(BecomeTop(part.statement), node)
                why = led.reason if led.head is None else led.head.refused
            else:
                self._one(SendSums(self._leader.peers), node)
                answer = self._one(ReceiveSums(node.name, part.statement), self._leader)
                if answer.head is None:
                    self._lost(self._leader, answer.reason)
                    continue
                part.between = [*part.between, *answer.head.between]
                why = answer.head.refused
            if why is not None:
                part.drop(node.reason or f"the sums of its node {node.name} were refused: {why}")
                continue
            self._leader = self._leader or node
            self._in.add(node.name)

    def _add_between(self, leader: Node, received: Received[answers.Mean]) -> None:
        """Add the mean's transfer to the root to the leader's transfers."""
        for part, node in self._parts:
            if node is leader:
                part.between = [*part.between, *received.between]

    def _lost(self, leader: Node, why: str) -> None:
        """Give up the leader. The next leader has to take all sums again, except those of the lost leader."""
        for part, node in self._parts:
            if node is leader:
                part.drop(leader.reason or f"its node {leader.name} could not be the top: {why}")
        self._leader, self._in = None, set()

    def _one(self, request: Request[AnyAnswer], node: Node) -> Received[AnyAnswer]:
        (received,) = self._ask(request, [node])
        return received
