"""Messages of a grid that are on their way, and what a watcher hears of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.app import Message, Metadata

from thalweg.flower.fold import Loop
from thalweg.flower.judging import Judge
from thalweg.tasks import Reply, Task


@dataclass(frozen=True)
class Sent:
    """Messages that went out together: which, to which nodes by name, and when (``time.monotonic``)."""

    number: int
    message: Message
    names: Sequence[str]
    at: float
    folds: bool
    #: Flower's own loop of rounds that sent them, if it was that.
    loop: Loop | None


@dataclass(frozen=True)
class Came:
    """A reply: to which ``Sent``, from whom, when, as a message for the app, and as a task's reply."""

    sent: Sent
    name: str
    at: float
    message: Message
    reply: Reply
    usage: Mapping[str, Any]
    #: Both ways, as docs/reference/outcome.md has transfers.
    transfers: Sequence[Mapping[str, Any]]


class Watcher(Protocol):
    """Hears of messages and replies, from several threads."""

    def sent(self, sent: Sent) -> None: ...

    def came(self, came: Came) -> None: ...

    def waited(self, sent: Sent, at: float) -> None: ...


@dataclass
class Group:
    """Messages of the same content, which are one task to several nodes."""

    sent: Sent
    label: str
    task: Task
    #: When its messages are of no use any more (``time.monotonic``).
    expires: float
    #: Judges the replies that are folded; None if they are not.
    judge: Judge | None
    #: Whether a caller waits for all of the group's replies.
    awaited: bool
    #: Weight of what was folded.
    weight: float = 0.0
    #: The task, and those that fetch what could not be folded, until all their replies are in.
    tasks: list[Task] = field(default_factory=list)
    #: Messages whose reply has not been taken.
    left: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def over(self) -> bool:
        """Whether all that can come has come."""
        return not self.tasks


@dataclass
class Waiting:
    """A message whose reply has not been taken yet."""

    group: Group
    metadata: Metadata
    message: Message | None = None
    #: What a watcher was told of the reply.
    came: Came | None = None
    #: The ways of its parts that have come.
    transfers: list[dict[str, Any]] = field(default_factory=list)
