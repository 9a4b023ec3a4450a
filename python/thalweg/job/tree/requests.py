"""Sends requests to members of a task server. Each member's answer is a head and perhaps an arena, or a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from thalweg import _core, bounded_json, wire
from thalweg.job.tree.messages import Message
from thalweg.machine.waiting import WAIT_SLICE
from thalweg.trees.answers import Transfer

# What the core returns of a member's reply: its name and state, the reason, the head, and the transfers as JSON.
Received: TypeAlias = "tuple[str, str, str | None, bytes, float, float, _core.Arena | None, str]"


@dataclass(frozen=True)
class Reply:
    """A member's answer. If it gave none, ``head`` is None and ``reason`` says why. ``between`` are its transfers.

    ``head`` is the text of an object of bounded JSON, which ``Message.read`` reads. ``is_unopened``: the member was not
    opened yet. ``is_senseless``: the member answered, but its head was no such object.
    """

    member: str
    head: bytes | None
    tensors: _core.Arena | None
    reason: str
    between: tuple[Transfer, ...]
    is_lost: bool
    is_unopened: bool = False
    is_senseless: bool = False


def ask(
    server: _core.TaskServer,
    head: Message,
    members: Sequence[str],
    *,
    model: tuple[_core.Arena, int] | None = None,
    look: Callable[[], None] | None = None,
) -> Iterator[Reply]:
    """Send members a request; yield the answers in the order in which they arrive.

    ``model`` is a model to send along, and its version: a member that already has this version is not sent the model
    again. ``look`` is called several times a second; if it raises, the request ends with that error.
    """
    if not members:
        return
    arena, version = (None, 0) if model is None else model
    number = server.open(wire.encode(head).encode(), arena, version, list(members), None, None, None)
    try:
        while True:
            try:
                received = server.next_reply(number, WAIT_SLICE)
            except _core.CoreError as error:
                if error.kind != "timeout":
                    raise
                if look is not None:
                    look()
                continue
            if received is None:
                return
            yield reply_of(received)
    finally:
        server.release(number)


def reply_of(received: Received) -> Reply:
    """Return the reply that the core's values stand for."""
    member, state, reason, head, _, _, tensors, transfers = received
    between = wire.decode(tuple[Transfer, ...], transfers)
    if state != "done":
        return Reply(member, None, None, reason or state, between, state == "lost")
    try:
        unopened = bounded_json.read_object(head).get("unopened") is True
        return Reply(member, head, tensors, "", between, is_lost=False, is_unopened=unopened)
    except bounded_json.JsonError as error:
        why = f"its answer cannot be read: {error}"
        return Reply(member, None, None, why, between, is_lost=False, is_senseless=True)
