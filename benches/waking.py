"""Measures the least cost of a hand-over: how long a byte over a Unix socket takes to wake a sleeping process."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# The process answers with its reading of the monotonic clock, which is the same in all processes of a machine.
SLEEPER: Final = """
import socket, sys, time
peer = socket.socket(fileno=int(sys.argv[1]))
while peer.recv(1):
    peer.sendall(time.monotonic_ns().to_bytes(8, "little"))
"""


class Sleeper:
    """A process that sleeps until a byte arrives."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self.seconds: list[float] = []

    def wake(self) -> None:
        """Wake the process once and store how long that took."""
        sent = time.monotonic_ns()
        self._peer.sendall(b".")
        self.seconds.append((int.from_bytes(self._peer.recv(8, socket.MSG_WAITALL), "little") - sent) / 1e9)

    @contextmanager
    def awoken(self, after: float) -> Iterator[None]:
        """Wake the process a number of seconds after the ``with`` block has begun, during the measurement in it."""
        timer = threading.Timer(after, self.wake)
        timer.start()
        try:
            yield
        finally:
            timer.join()


@contextmanager
def sleeper() -> Iterator[Sleeper]:
    """Start the process, and end it by closing its socket."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            command = [sys.executable, "-I", "-S", "-c", SLEEPER, str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        yield Sleeper(ours)
    process.wait()
