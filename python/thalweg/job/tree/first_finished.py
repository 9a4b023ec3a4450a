"""A round's top is one of the nodes: it takes the sums of the others. Each node can both send and take sums."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from thalweg import _core, wire
from thalweg.errors import RoundError
from thalweg.job.tree.messages import BecomeTop, ComputeMean, ReceiveSums, Request, SendSums, SumsWanted
from thalweg.job.tree.others import Answer, AnswerOthers, Others
from thalweg.plan.options import CoreOptions
from thalweg.trees import answers
from thalweg.trees.merging import Statement

# A round's sums: their head, and their cells.
Sums = tuple[bytes, "_core.Arena"]
# Returns the sums of a node's last round, or only those of a range of bytes; None if the node has none.
SumsOf = Callable[["tuple[int, int] | None"], "Sums | None"]
# Makes a node's links with the other nodes. Its argument is the function that answers their requests.
Link = Callable[[AnswerOthers], Others]


class SumsExchange(Protocol):
    """A node's part in folding the sums of all nodes."""

    others: Others

    def do(self, request: Request[Any]) -> Answer:
        """Carry out a request of the root. Raises CoreError or RoundError if the node cannot."""

    def begin(self, *, kept: bool) -> None:
        """Begin a round. If ``kept``, this node already has the round's model; else the root has sent it."""


class GatheringTop:
    """The top at one node: the first node that has finished its round takes the sums of all others."""

    def __init__(self, model: _core.Arena, top: CoreOptions, sums: SumsOf, link: Link) -> None:
        self._model, self._sums = model, sums
        self._top = _core.Top(model, wire.encode(top))
        self.others = link(lambda *_: sums_answer(self._sums(None)))

    def begin(self, *, kept: bool) -> None:
        """Begin a round; there is nothing to do."""

    def do(self, request: Request[Any]) -> Answer:
        """Carry out a request of the root and return the answer."""
        if isinstance(request, BecomeTop):
            return self._lead(statement_of(request.claim)), None
        if isinstance(request, SendSums):
            self.others.join(request.to)
            return answers.Nothing(), None
        if isinstance(request, ReceiveSums):
            return self._take(request.node, statement_of(request.claim)), None
        if isinstance(request, ComputeMean):
            fold = wire.decode(answers.MeanFold, self._top.finish())
            return answers.Mean(fold=fold, done=time.time()), self._model
        raise not_understood(request.do)

    def _lead(self, statement: Statement) -> answers.Refusable:
        """Become the top, and begin with this node's own sums."""
        self._top.forget()
        own = self._sums(None)
        if own is None:
            return answers.Refusable(refused="it has no sums")
        head, cells = own
        self._top.merge(head, cells, *statement)
        return answers.Refusable()

    def _take(self, name: str, statement: Statement) -> answers.Taken:
        """Add another node's sums if they fit ``statement``. If they do not, the answer has the reason."""
        (reply,) = self.others.ask(SumsWanted(), [name])
        why = taken(self._top, reply.head, reply.tensors, statement) if reply.head is not None else reply.reason
        return answers.Taken(between=reply.between, refused=why)


def sums_answer(sums: Sums | None) -> Answer:
    """Return the answer that carries sums. Raises RoundError if there are none."""
    if sums is None:
        raise RoundError("it has no sums", "See the record's log.txt")
    return answers.Sums(sums=base64.b64encode(sums[0]).decode()), sums[1]


def taken(top: _core.Top, head: bytes, cells: _core.Arena | None, statement: Statement) -> str | None:
    """Add another node's sums to the top's sums; return the reason if they were refused, else None."""
    if cells is None:
        return "it has no sums"
    try:
        top.merge(base64.b64decode(answers.read(answers.Sums, "sums", head).sums), cells, *statement)
    except (_core.CoreError, ValueError) as error:
        return str(error)
    return None


def statement_of(claim: Sequence[Any]) -> Statement:
    """Return the statement about sums that a list in JSON stands for."""
    updates, weight, whole = claim
    return Statement(int(updates), float(weight), bool(whole))


def not_understood(requested: str) -> RoundError:
    """Return the error for a request that this node was not opened for."""
    return RoundError(f"this node was not opened for {requested!r}", "Use the same version on both sides")
