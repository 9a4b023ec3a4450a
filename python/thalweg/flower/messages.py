"""Open messages of a grid, and the notifications that a watcher gets about them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from flwr.app import Message, Metadata

from thalweg.flower.fold import Loop
from thalweg.flower.judging import Judge
from thalweg.outcome import Transfer
from thalweg.tasks import Reply, Task


@dataclass(frozen=True)
class Sent:
    """Messages that were sent together: the first of them, the names of their nodes, and when (``time.monotonic``)."""

    number: int
    message: Message
    names: Sequence[str]
    at: float
    folds: bool
    #: Flower's own loop of rounds, if that sent them.
    loop: Loop | None


@dataclass(frozen=True)
class Arrival:
    """A reply that arrived: to which ``Sent``, from which node, and when (``time.monotonic``).

    ``message`` is what the app gets, ``reply`` is the task's reply.
    """

    sent: Sent
    name: str
    at: float
    message: Message
    reply: Reply
    #: The node's own report of what its process used. Nobody has checked it.
    usage: object
    #: Its transfers, down and up, as in docs/reference/outcome.md.
    transfers: Sequence[Transfer]


class Watcher(Protocol):
    """Is notified of messages and replies, by several threads."""

    def sent(self, sent: Sent) -> None: ...

    def replied(self, arrival: Arrival) -> None: ...

    def waited(self, sent: Sent, at: float) -> None: ...


@dataclass
class Group:
    """Messages with the same content, which are one task for several nodes."""

    sent: Sent
    label: str
    task: Task
    #: When its messages expire (``time.monotonic``).
    expires: float
    #: The judge of its folded replies; None if replies are not folded.
    judge: Judge | None
    #: Whether a caller waits for all of the group's replies.
    awaited: bool
    #: Total weight of the folded replies.
    weight: float = 0.0
    #: Unfinished tasks: the group's own, and those that fetch replies that could not be folded.
    tasks: list[Task] = field(default_factory=list)
    #: Number of messages whose reply has not been taken.
    left: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def over(self) -> bool:
        """Whether all replies of the group have arrived, or cannot arrive any more."""
        return not self.tasks


@dataclass
class Waiting:
    """A message whose reply has not been taken yet."""

    group: Group
    metadata: Metadata
    message: Message | None = None
    #: The notification about its reply that the watcher got.
    arrival: Arrival | None = None
    #: The transfers of this message and of its reply so far.
    transfers: list[Transfer] = field(default_factory=list)
