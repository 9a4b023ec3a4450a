"""Where the sums of a tree's nodes meet: at the root, or at the first node that has finished its round."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from thalweg import _core
from thalweg.errors import RoundError
from thalweg.trees.merging import Part
from thalweg.wire import Table


@dataclass
class Node:
    """A node as the root knows it: its clients, where it listens, and what it said last."""

    name: str
    clients: Sequence[str]
    address: str = ""
    # Where clients of other nodes reach it; empty if nobody has said.
    reached: str = ""
    # Where other nodes connect to.
    peers: str = ""
    state: dict[str, Any] = field(default_factory=dict)
    # What became of it, as in "is gone: killed by signal 9"; None while it is there.
    loss: str | None = None
    # The version of the model that it has from other nodes.
    has: int | None = None
    # How many clients it waits for.
    expected: int = 0
    # Clients whose proofs it has passed on.
    proven: set[str] = field(default_factory=set)
    # Clients that it has named without a proof; the log says so once.
    unproven: set[str] = field(default_factory=set)
    # It was lost, and its clients have moved to other nodes.
    is_empty: bool = False

    @property
    def reason(self) -> str:
        """Why its clients take no part; empty while it is there."""
        return "" if self.loss is None else f"its node {self.name} {self.loss}"


@dataclass(frozen=True)
class Heard:
    """A node's answer; without ``head`` there is none, for this reason. ``is_lost``: the node went away meanwhile."""

    node: Node
    head: dict[str, Any] | None
    tensors: _core.Arena | None
    reason: str
    between: Sequence[Mapping[str, Any]]
    is_lost: bool = False


# Asks nodes something; gives what each answers, in the order in which answers come.
Ask = Callable[[Table, Sequence[Node]], Iterator[Heard]]


class Top(Protocol):
    """Where sums meet."""

    def begin(self) -> None:
        """Forget what there is of an earlier round."""

    def take(self, part: Part, heard: Heard) -> None:
        """Take the sums of a node that has finished its round. If they do not count, write the reason to ``part``."""

    def finish(self, check: Callable[[], None]) -> dict[str, Any]:
        """Take the mean into the model; return what the fold says, and with ``done`` when, on the wall clock.

        ``has`` may name nodes that have the whole mean already. ``check`` raises if too few updates are in it. Raises
        CoreError if the sums come to none, RoundError if nobody has them any more.
        """


class Dedicated:
    """The top is the root itself, which has no clients."""

    def __init__(self, model: _core.Arena, options: Table) -> None:
        self._top = _core.Top(model, json.dumps(options))

    def begin(self) -> None:
        self._top.forget()

    def take(self, part: Part, heard: Heard) -> None:
        if heard.head is None or heard.tensors is None or "sums" not in heard.head:
            part.reason = part.reason or "it has no sums"
            return
        try:
            self._top.merge(base64.b64decode(heard.head["sums"]), heard.tensors, *part.statement)
        except (_core.CoreError, ValueError) as error:
            part.drop(f"the sums of its node {part.node} were refused: {error}")

    def finish(self, check: Callable[[], None]) -> dict[str, Any]:
        check()
        fold: dict[str, Any] = json.loads(self._top.finish())
        return {**fold, "done": time.time()}


class FirstFinished:
    """The top is the first node to finish its round: others send it their sums, and it sends the mean to the root.

    If it is lost, the first that is left takes its place, since all nodes have their sums until the next round.
    """

    def __init__(self, model: _core.Arena, ask: Ask) -> None:
        self._model, self._ask = model, ask
        self._leader: Node | None = None
        self._parts: list[tuple[Part, Node]] = []
        # Names of nodes whose sums the leader has.
        self._in: set[str] = set()

    def begin(self) -> None:
        self._leader, self._parts, self._in = None, [], set()

    def take(self, part: Part, heard: Heard) -> None:
        if heard.head is None or not heard.head["held"]:
            part.reason = part.reason or "it has no sums"
            return
        self._parts.append((part, heard.node))
        self._settle()

    def finish(self, check: Callable[[], None]) -> dict[str, Any]:
        check()
        while self._leader is not None:
            leader = self._leader
            heard = self._one({"do": "finish"}, leader)
            if heard.head is not None and heard.tensors is not None and len(heard.tensors) == len(self._model):
                np.copyto(np.asarray(self._model), np.asarray(heard.tensors))
                self._add_between(leader, heard)
                fold: dict[str, Any] = heard.head["fold"]
                return {**fold, "top": leader.name, "done": heard.head["done"]}
            if leader.loss is None:
                raise RoundError(f"{leader.name} gives no model: {heard.reason}", "See the record's log.txt")
            self._lost(leader, heard.reason)
            self._settle()
            check()
        raise RoundError("no node has the round's sums any more", "See the record's log.txt for who was lost")

    def _settle(self) -> None:
        """Bring all sums that count to one leader."""
        while left := [pair for pair in self._parts if pair[0].outcome is not None and pair[1].name not in self._in]:
            part, node = left[0]
            if self._leader is None:
                heard = self._one({"do": "lead", "claim": part.statement}, node)
                why = heard.reason if heard.head is None else heard.head.get("refused")
            else:
                self._one({"do": "give", "to": self._leader.peers}, node)
                heard = self._one({"do": "take", "node": node.name, "claim": part.statement}, self._leader)
                if heard.head is None:
                    self._lost(self._leader, heard.reason)
                    continue
                part.between = [*part.between, *heard.head.get("between", ())]
                why = heard.head.get("refused")
            if why is not None:
                part.drop(node.reason or f"the sums of its node {node.name} were refused: {why}")
                continue
            self._leader = self._leader or node
            self._in.add(node.name)

    def _add_between(self, leader: Node, heard: Heard) -> None:
        """Count the way of the mean to the root."""
        for part, node in self._parts:
            if node is leader:
                part.between = [*part.between, *heard.between]

    def _lost(self, leader: Node, why: str) -> None:
        """Have no leader any more: what it took is to be brought to another one."""
        for part, node in self._parts:
            if node is leader:
                part.drop(leader.reason or f"its node {leader.name} could not be the top: {why}")
        self._leader, self._in = None, set()

    def _one(self, head: Table, node: Node) -> Heard:
        (heard,) = self._ask(head, [node])
        return heard
