"""The least that a hand-over costs: a byte over a Unix socket wakes a process that has slept, and nothing else."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# It answers with its clock, which all processes of a machine have alike.
SLEEPER: Final = """
import socket, sys, time
peer = socket.socket(fileno=int(sys.argv[1]))
while peer.recv(1):
    peer.sendall(time.monotonic_ns().to_bytes(8, "little"))
"""


class Sleeper:
    """A process that waits for a byte."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self.seconds: list[float] = []

    def wake(self) -> None:
        """Wake it once, and keep how long that took."""
        sent = time.monotonic_ns()
        self._peer.sendall(b".")
        self.seconds.append((int.from_bytes(self._peer.recv(8, socket.MSG_WAITALL), "little") - sent) / 1e9)

    @contextmanager
    def awoken(self, after: float) -> Iterator[None]:
        """Wake it so many seconds after the block has begun, while whatever is measured in the block goes on."""
        timer = threading.Timer(after, self.wake)
        timer.start()
        try:
            yield
        finally:
            timer.join()


@contextmanager
def sleeper() -> Iterator[Sleeper]:
    """Start the process, and end it with its socket."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            command = [sys.executable, "-I", "-S", "-c", SLEEPER, str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        yield Sleeper(ours)
    process.wait()
