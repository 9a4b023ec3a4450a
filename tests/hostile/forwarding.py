"""Hostile ends of a forwarded path: after a correct handshake each sends one of ``LIES``."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

from tests.hostile import wire

# Turns a hang into a failure.
LIMIT: Final = 60.0
STREAMS: Final = 1 << 24
MOST: Final = (1 << 64) - 1
WINDOW: Final = 1 << 16


@dataclass(frozen=True)
class Lie:
    """What an end sends about stream 0, and the error that the other end reports; None: it reports a lost link."""

    frames: tuple[bytes, ...]
    words: str | None = None
    then: Literal["leaves", "is reset", "stays"] = "leaves"


def _says(what: int, *numbers: int) -> bytes:
    return wire.control(wire.forward(what, *numbers))


def _reset(reason: bytes) -> bytes:
    return wire.control(wire.forward(wire.RESET, 0, len(reason)) + reason)


_OPEN: Final = _says(wire.OPEN, 0, WINDOW)
_ENDS: Final = "two different ends"
_ALIEN: Final = "does not belong on a link that forwards"
LIES: Final[Sequence[Lie]] = (
    Lie((), then="is reset"),
    Lie((_OPEN, wire.chunk(0, 0, b"half a question")), then="is reset"),
    Lie((_OPEN, wire.chunk(0, 0, b"x" * 100)[:80])),
    Lie((), "says nothing", then="stays"),
    Lie((wire.chunk(7, 0, b"to nobody"), wire.chunk(STREAMS - 1, 0, b"to nobody"))),
    Lie((_OPEN, wire.chunk(0, WINDOW, b"x")), "more than it was granted"),
    Lie((_OPEN, _says(wire.END, 0, 5), _says(wire.END, 0, 6)), _ENDS),
    Lie((_OPEN, wire.chunk(0, 0, b"hello"), _says(wire.END, 0, 2)), _ENDS),
    Lie((_OPEN, _says(wire.END, 0, 2), wire.chunk(0, 0, b"hello")), "behind the end"),
    Lie((_OPEN, _says(wire.CREDIT, 0, MOST, MOST)), "never sent"),
    Lie((_OPEN, _says(wire.MISSING, 0, 1, MOST - 1, MOST)), "never sent"),
    Lie((_OPEN, wire.chunk(0, 0, b"hello", damage=1)), "damaged"),
    Lie((_says(wire.READY, 1, 1, 1),), "twice that it is ready"),
    # Closed, and Accepted.
    Lie((wire.control(b"\x0a\x01"),), _ALIEN),
    Lie((wire.control(b"\x08\x01"),), _ALIEN),
    Lie((wire.control(b"\xff"),), "message"),
    Lie((wire.control(b""),), "message"),
    Lie((wire.control(bytes(wire.MAX_CONTROL)),), "message"),
    Lie((wire.header(wire.CONTROL, wire.MAX_CONTROL + 1),), "over the limit"),
    Lie((wire.header(wire.CHUNK, (4 << 20) + 1),), "over the limit"),
    Lie((b"GET / HTTP/1.1\r\n\r\n" * 4,), "frame"),
    Lie((_OPEN, _OPEN, _says(wire.OPEN, STREAMS, 1))),
    Lie((_OPEN, _reset(b"\x1b[2J" * 1000))),
    Lie((_OPEN, _reset(b"\xff")), "message"),
)  # fmt: skip


class Link:
    """A connection of tcp after its preamble: each message on it is a frame."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.settimeout(LIMIT)

    def say(self, message: bytes) -> None:
        self.connection.sendall(wire.control(message))

    def read(self, count: int) -> bytes:
        """Return ``count`` bytes. Raises ConnectionError if the connection ends before they have arrived."""
        parts = b""
        while len(parts) < count:
            part = self.connection.recv(count - len(parts))
            if not part:
                raise ConnectionError("it has ended")
            parts += part
        return parts

    def hear(self) -> tuple[int, bytes]:
        """Return the kind and the content of the next frame."""
        head = self.read(wire.HEADER_BYTES)
        return head[5], self.read(int.from_bytes(head[8:12], "little"))

    def hear_of_stream(self) -> None:
        """Wait until the near end has opened stream 0."""
        while self.hear()[1][:3] != wire.forward(wire.OPEN, 0):
            pass

    def send_lie(self, lie: Lie, *, opens: bool) -> None:
        """Send a lie, then leave, or stay until the other end leaves. ``opens``: open stream 0 first."""
        for frame in lie.frames:
            if opens or frame != _OPEN:
                self.connection.sendall(frame)
        if lie.words is not None or lie.then == "stays":
            while True:
                self.hear()
        if lie.then == "is reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def let_in(link: Link, name: str, random: Random) -> None:
    """Do the handshake with a far end, as a near end of this name."""
    opening = wire.preamble(random)
    link.connection.sendall(opening)
    assert link.read(len(opening)) == opening
    assert link.hear()[1][0] == 0, "it challenges"
    link.say(wire.near_hello(name.encode(), random))
    assert link.hear()[1][:2] == wire.forward(wire.READY)


def far_end(listener: socket.socket, random: Random, ready: tuple[int, int, int]) -> Link:
    """Return the link of a far end that accepts any peer. ``ready``: its window, number of streams and liveness."""
    link = Link(listener.accept()[0])
    link.connection.sendall(link.read(len(wire.preamble(random))))
    link.say(wire.challenge(random))
    assert link.hear()[1][0] == 1, "it says Hello"
    link.say(wire.forward(wire.READY, *ready))
    return link
