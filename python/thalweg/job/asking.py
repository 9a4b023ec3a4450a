"""Asking members of a server of tasks: each answers with a head and maybe an arena, or it is known why not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from thalweg import _core

# Seconds after which whoever waits looks around.
SLICE: Final = 0.2


@dataclass(frozen=True)
class Reply:
    """A member's answer; without ``head`` there is none, for this reason. ``between`` are its transfers."""

    member: str
    head: dict[str, Any] | None
    tensors: _core.Arena | None
    reason: str
    between: Sequence[Mapping[str, Any]]
    is_lost: bool


def ask(
    server: _core.TaskServer,
    head: Mapping[str, Any],
    members: Sequence[str],
    *,
    model: tuple[_core.Arena, int] | None = None,
    look: Callable[[], None] | None = None,
) -> Iterator[Reply]:
    """Ask members something; yield what each answers, in the order in which answers come.

    A ``model`` goes with it that has a number: who has it already is not sent it again. ``look`` is called several
    times a second, and what it raises ends this.
    """
    if not members:
        return
    arena, version = (None, 0) if model is None else model
    number = server.open(json.dumps(head).encode(), arena, version, list(members), None, None, None)
    try:
        while True:
            try:
                told = server.next_reply(number, SLICE)
            except _core.CoreError as error:
                if error.kind != "timeout":
                    raise
                if look is not None:
                    look()
                continue
            if told is None:
                return
            yield _reply(told)
    finally:
        server.release(number)


def _reply(told: tuple[Any, ...]) -> Reply:
    member, state, reason, head, _, _, tensors, transfers = told
    done = state == "done"
    said = json.loads(head) if done else None
    why = "" if done else reason or state
    return Reply(member, said, tensors if done else None, why, json.loads(transfers), state == "lost")
