"""Replies as Flower's messages: what a node sent, or an error with one of Flower's codes."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, Final

from flwr.app import Error, Message, Metadata, RecordDict

from thalweg.flower import compat, records
from thalweg.flower.client import seconds_of
from thalweg.flower.messages import Waiting
from thalweg.flower.records import HeadError
from thalweg.tasks import Reply

#: Of Flower's error codes those that a server gives.
MESSAGE_UNAVAILABLE: Final = 3
REPLY_UNAVAILABLE: Final = 4
NODE_UNAVAILABLE: Final = 5
CRASHED: Final = 8


class Answers:
    """Makes messages of replies to the messages of one run."""

    def __init__(self, run_id: int) -> None:
        self._run_id = run_id

    def of(self, waiting: Waiting, reply: Reply, died: str | None) -> tuple[Message, float]:
        """Return a reply as a message, and for how many seconds it is of use.

        ``died`` says how the node's process ended, if it has.
        """
        if reply.done:
            head = reply.head if isinstance(reply.head, dict) else {}
            try:
                created, ttl = seconds_of(head["created"]), seconds_of(head["ttl"])
                return compat.assemble(self._metadata(waiting, created, ttl), _content(head, reply)), ttl
            except (HeadError, LookupError, TypeError, ValueError, OverflowError) as error:
                return self.error(waiting, REPLY_UNAVAILABLE, f"it sent no reply that can be read: {error}"), math.inf
        reason = died or reply.reason or reply.state
        codes = {"lost": NODE_UNAVAILABLE if died is None else CRASHED, "late": MESSAGE_UNAVAILABLE}
        return self.error(waiting, codes.get(reply.state, REPLY_UNAVAILABLE), reason), math.inf

    def error(self, waiting: Waiting, code: int, reason: str) -> Message:
        """Return an error in the place of a reply."""
        now = time.time()
        left = max(0.0, waiting.metadata.created_at + waiting.metadata.ttl - now)
        return compat.assemble(self._metadata(waiting, now, left), Error(code, reason))

    def unknown(self, one: str) -> Message:
        """Return what there is for a message, by its id, that nothing is known of, or no more."""
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
        asked = waiting.metadata
        return Metadata(
            run_id=self._run_id,
            message_id=f"{asked.message_id}-reply",
            src_node_id=asked.dst_node_id,
            dst_node_id=compat.SERVER_NODE,
            reply_to_message_id=asked.message_id,
            group_id=asked.group_id,
            created_at=created,
            ttl=ttl,
            message_type=asked.message_type,
        )


def _content(head: Mapping[str, Any], reply: Reply) -> RecordDict | Error:
    if "error" in head:
        code, reason = head["error"]
        if type(code) is not int or not (reason is None or isinstance(reason, str)):
            raise HeadError("its error is none")
        return Error(code, reason)
    return records.unpack(head["records"], reply.tensors)
