"""A node's side of a sharded top (``tree.top = "sharded"``): each node is the top for its own part of the bytes.

The root makes a round's mean in three steps, each a request to all nodes. ``share``: a node takes the sums of its part
from all other nodes. ``settle``: the node computes the mean of its part and sends it to all other nodes, and to the
root as its answer. ``told``: the node says which other nodes have its part of the mean.

No node writes a part of the mean to its model until the root begins the next round with ``kept``. So if a node is lost
at any moment, the root can ask the remaining nodes to share again, and they begin from the same state. Each try has a
number, the ``turn``. It distinguishes parts of an earlier try's mean, which may arrive late.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from thalweg import _core, wire
from thalweg.errors import RoundError
from thalweg.job.tree.first_finished import Link, SumsOf, not_understood, statement_of, sums_answer, taken
from thalweg.job.tree.messages import Bytes, ComputePart, ConfirmParts, FoldPart, MeanPart, Request, SumsWanted
from thalweg.job.tree.others import Answer
from thalweg.job.tree.requests import Reply
from thalweg.plan.options import CoreOptions
from thalweg.trees import answers
from thalweg.trees.answers import Transfer
from thalweg.trees.merging import Statement
from thalweg.wire import Table


class ShardTop:
    """The top for one part of the bytes. The part may change from round to round."""

    def __init__(self, name: str, model: _core.Arena, top: CoreOptions, sums: SumsOf, link: Link) -> None:
        self._name, self._model, self._options, self._sums = name, model, wire.encode(top), sums
        self._top: _core.Top | None = None
        self._part: Bytes | None = None
        # Kept until the round ends: this node's part of the model before the mean, and the other nodes' parts of the
        # mean.
        self._before: np.ndarray[Any, Any] | None = None
        self._means: dict[Bytes, _core.Arena] = {}
        self._turn = 0
        # The thread that sends this node's part of the mean, and the other nodes' answers to it.
        self._sending: tuple[threading.Thread, list[Reply]] | None = None
        self._lock = threading.Lock()
        self.others = link(self._answer)

    def begin(self, *, kept: bool) -> None:
        """Begin a round. If ``kept``, the last round's mean is the model, and the root has not sent it again."""
        with self._lock:
            if kept:
                for part, mean in self._means.items():
                    self._bytes(part)[:] = np.asarray(mean)[: part[1] - part[0]]
            self._top = self._part = self._before = None
            self._means = {}

    def do(self, request: Request[Any]) -> Answer:
        """Carry out a request of the root and return the answer."""
        if isinstance(request, FoldPart):
            parts = {name: (int(start), int(end)) for name, (start, end) in request.parts.items()}
            self._forget(request.turn)
            for address in request.addresses:
                if address != self.others.address:
                    self.others.join(address)
            return self._share({name: statement_of(claim) for name, claim in request.nodes.items()}, parts), None
        if isinstance(request, ComputePart):
            return self._settle(request.to)
        if isinstance(request, ConfirmParts):
            return self._delivered(), None
        raise not_understood(request.do)

    def _share(self, counted: Mapping[str, Statement], parts: Mapping[str, Bytes]) -> answers.Shared:
        """Take the sums of this node's part from all nodes that count; return the nodes whose sums were refused."""
        if self._name not in parts:
            return answers.Shared(refused={}, between=())
        part = parts[self._name]
        top, own = _core.Top(self._model, self._options, part), self._sums(part)
        if own is None:
            return answers.Shared(refused={self._name: "it has no sums"}, between=())
        own_head, cells = own
        top.merge(own_head, cells, *counted[self._name])
        refused: dict[str, str] = {}
        between: list[Transfer] = []
        names = [name for name in counted if name != self._name]
        for reply in self.others.ask(SumsWanted(part), names):
            between += reply.between
            why = reply.reason
            if reply.head is not None:
                why = taken(top, reply.head, reply.tensors, counted[reply.member]) or ""
            if why:
                refused[reply.member] = why
        self._top, self._part = top, part
        return answers.Shared(refused=refused, between=tuple(between))

    def _settle(self, to: Sequence[str]) -> Answer:
        """Compute the mean of this node's part, and begin to send it to the nodes ``to``."""
        if self._top is None or self._part is None:
            raise RoundError("this node has no part of the round's sums", "See the record's log.txt")
        own = self._bytes(self._part)
        self._before = own.copy()
        fold, done = wire.decode(answers.MeanFold, self._top.finish()), time.time()
        mean = _core.Arena(_core.Layout([("mean", "U8", [len(own)])]))
        np.asarray(mean)[: len(own)] = own
        request, replies = MeanPart(self._part, self._turn), list[Reply]()
        names = [name for name in to if name != self._name]

        def send() -> None:
            with suppress(_core.CoreError):  # the job is ending
                replies.extend(self.others.ask(request, names, mean))

        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        self._sending = sending, replies
        return answers.Mean(fold=fold, done=done), mean

    def _delivered(self) -> answers.Delivered:
        """Wait until each other node has this node's part of the mean or is lost; return the nodes that have it."""
        if self._sending is None:
            raise RoundError("this node has sent no part of a mean", "See the record's log.txt")
        sending, replies = self._sending
        sending.join()
        has = tuple(reply.member for reply in replies if reply.head is not None)
        return answers.Delivered(has=has, between=tuple(one for reply in replies for one in reply.between))

    def _answer(self, head: Table, tensors: _core.Arena | None) -> Answer:
        """Answer another node: give it the sums of its part, or keep its part of the mean."""
        wanted = SumsWanted.of(head).sums
        if wanted is not None:
            start, end = wanted
            return sums_answer(self._sums((int(start), int(end))))
        sent = MeanPart.of(head)
        start, end = sent.mean
        if tensors is None or not 0 <= start <= end <= len(self._model) or len(tensors) < end - start:
            raise RoundError("a part of a mean came that is none of this model", "Use the same version on both sides")
        with self._lock:
            if sent.turn != self._turn:
                raise RoundError("a part of a mean came too late", "Nothing is to be done")
            self._means[start, end] = tensors
        return answers.Nothing(), None

    def _forget(self, turn: int) -> None:
        """Restore the model from before the mean, and drop the means of earlier turns."""
        with self._lock:
            if self._part is not None and self._before is not None:
                self._bytes(self._part)[:] = self._before
            self._top = self._part = self._before = None
            self._turn, self._means = turn, {}

    def _bytes(self, part: Bytes) -> np.ndarray[Any, Any]:
        """Return a writable view of a part of the model's bytes."""
        return np.asarray(self._model)[part[0] : part[1]]
