"""Turns replies into Flower's messages: with the content that a node sent, or an error with a code of Flower."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from flwr.app import Error, Message, Metadata
from flwr.serverapp.strategy import Strategy

from thalweg.flower import agreeing, compat
from thalweg.flower.judging import UNREADABLE, Judge, read
from thalweg.flower.messages import Arrival, Waiting
from thalweg.flower.records import HeadError
from thalweg.tasks import Reply

#: The error codes of Flower that a server sends.
MESSAGE_UNAVAILABLE: Final = 3
REPLY_UNAVAILABLE: Final = 4
NODE_UNAVAILABLE: Final = 5
CRASHED: Final = 8


class Answers:
    """Makes Flower's reply messages for one run."""

    def __init__(self, run_id: int) -> None:
        self._run_id = run_id

    def of(self, waiting: Waiting, reply: Reply, died: str | None, judge: Judge | None) -> Message:
        """Return the message for a reply: its content, or an error.

        ``died`` says how the node's process ended, if it has ended. ``judge`` is the judge that accepted the reply if
        its arrays were folded, else None.
        """
        if reply.done:
            try:
                parsed = read(reply.head, reply.tensors) if judge is None else judge.read(reply.head, reply.weight)
            except HeadError as error:
                return self.error(waiting, REPLY_UNAVAILABLE, f"{UNREADABLE}: {error}")
            return compat.assemble(self._metadata(waiting, parsed.created, parsed.ttl), parsed.content)
        reason = died or reply.reason or reply.state
        codes = {"lost": NODE_UNAVAILABLE if died is None else CRASHED, "late": MESSAGE_UNAVAILABLE}
        return self.error(waiting, codes.get(reply.state, REPLY_UNAVAILABLE), reason)

    def set_apart(self, waiting: Sequence[Waiting], strategy: Strategy) -> Iterator[Arrival]:
        """Replace replies whose form differs from the others' by errors, and yield those. Flower's mean would fail."""
        there = [(one, message) for one in waiting if (message := one.message) is not None and message.has_content()]
        if not there:
            return
        group, key = there[0][0].group, getattr(strategy, "weighted_by_key", None)
        # A folded reply stays in the mean, whatever its metrics are, so metrics are not compared then.
        contents, folded = [message.content for _, message in there], group.weight > 0
        for at, why in agreeing.odd(contents, group.sent.message.content, key, metrics=not folded).items():
            one = there[at][0]
            one.message = self.error(one, REPLY_UNAVAILABLE, why)
            if one.arrival is not None:
                yield replace(one.arrival, message=one.message, transfers=[])

    def error(self, waiting: Waiting, code: int, reason: str) -> Message:
        """Return the error message that takes the place of a reply."""
        now = time.time()
        left = max(0.0, waiting.metadata.created_at + waiting.metadata.ttl - now)
        return compat.assemble(self._metadata(waiting, now, left), Error(code, reason))

    def unknown(self, one: str) -> Message:
        """Return the error message for a message id that was never known or has been forgotten."""
        metadata = Metadata(
            run_id=self._run_id,
            message_id=f"{one}-reply",
            src_node_id=compat.SERVER_NODE,
            dst_node_id=compat.SERVER_NODE,
            reply_to_message_id=one,
            group_id="",
            created_at=time.time(),
            ttl=0,
            message_type=compat.SYSTEM,
        )
        reason = "there is no such message: its reply was taken, it has expired, or it was never sent"
        return compat.assemble(metadata, Error(MESSAGE_UNAVAILABLE, reason))

    def _metadata(self, waiting: Waiting, created: float, ttl: float) -> Metadata:
        request = waiting.metadata
        return Metadata(
            run_id=self._run_id,
            message_id=f"{request.message_id}-reply",
            src_node_id=request.dst_node_id,
            dst_node_id=compat.SERVER_NODE,
            reply_to_message_id=request.message_id,
            group_id=request.group_id,
            created_at=created,
            ttl=ttl,
            message_type=request.message_type,
        )
