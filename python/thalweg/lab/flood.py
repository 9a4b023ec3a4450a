"""Competing traffic on emulated links: ``python -m thalweg.lab.flood``, a paced TCP stream for each pair of parties.

It reads a line of JSON from standard input, ``{"pairs": [{"source", "target"}], "bits_per_second", "place"}``, with
``name``, ``namespace`` and ``address`` of each end. It prints ``{"ready": true}`` once all are connected, and sends
until standard input ends. Then it prints ``{"flows": [{"source", "target", "bytes", "seconds", "bits_per_second",
"failure"}]}``.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from thalweg import wire
from thalweg.lab import inside
from thalweg.lab.namespaces import within

CONNECT_SECONDS: Final = 60.0
# Bounds in bytes of the blocks that the sender writes. A block has the bytes of 5 ms at the sender's rate.
BLOCK_SECONDS: Final = 0.005
LEAST_BLOCK: Final = 1448
LARGEST_BLOCK: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class End:
    """One end of a stream: a party's name, namespace and address."""

    name: str
    namespace: str
    address: str


@dataclass(frozen=True, slots=True)
class Carried:
    """What a stream carried, and why it broke, if it did."""

    source: str
    target: str
    bytes: int
    seconds: float
    bits_per_second: float
    failure: str | None


class Flow:
    """One stream. The sender keeps to its rate. Time lost to back-pressure is not made up later."""

    def __init__(self, source: End, target: End, bits_per_second: int) -> None:
        self._source, self._target = source.name, target.name
        self._rate = bits_per_second
        self._received = 0
        self._began: float | None = None
        self._failure: str | None = None
        with within(target.namespace, lambda: socket.create_server((target.address, 0))) as listener:
            address = listener.getsockname()
            self._sender = within(source.namespace, lambda: socket.create_connection(address, CONNECT_SECONDS))
            listener.settimeout(CONNECT_SECONDS)
            self._receiver, _ = listener.accept()
        self._sender.settimeout(None)
        self._ending = False
        self._threads = [threading.Thread(target=do, daemon=True) for do in (self._receive, self._send)]

    @property
    def port(self) -> int:
        """The sender's port."""
        return int(self._sender.getsockname()[1])

    def start(self) -> None:
        """Start the threads that send and receive."""
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()

    def stop(self) -> Carried:
        """End the stream and return how much arrived, and how fast."""
        seconds = 0.0 if self._began is None else time.monotonic() - self._began
        received = self._received
        self._ending = True
        for end in (self._sender, self._receiver):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._sender.close()
        self._receiver.close()
        rate = 8 * received / seconds if seconds else 0.0
        return Carried(self._source, self._target, received, seconds, rate, self._failure)

    def _send(self) -> None:
        size = block_bytes(self._rate)
        block, interval = bytes(size), 8 * size / self._rate
        due = time.monotonic()
        with self._failing():
            while not self._ending:
                self._sender.sendall(block)
                now = time.monotonic()
                due = max(due + interval, now)
                time.sleep(due - now)

    def _receive(self) -> None:
        buffer = bytearray(1 << 18)
        with self._failing():
            while count := self._receiver.recv_into(buffer):
                self._received += count

    def _failing(self) -> Failing:
        return Failing(self)

    def failed(self, error: OSError) -> None:
        """Keep why the stream broke, unless it was being ended."""
        if not self._ending:
            self._failure = str(error)


class Failing:
    """A context that reports an OSError to its flow and suppresses it."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, OSError):
            self._flow.failed(error)
            return True
        return False


def block_bytes(bits_per_second: int) -> int:
    """Return the size of the blocks that are sent at this rate."""
    return max(LEAST_BLOCK, min(LARGEST_BLOCK, round(bits_per_second / 8 * BLOCK_SECONDS)))


def main() -> int:
    """Flood until standard input ends. Returns the exit code."""
    order = wire.plain(sys.stdin.readline())
    inside.settle(inside.ProcessPlace(**order["place"]))
    try:
        flows = [
            Flow(End(**pair["source"]), End(**pair["target"]), order["bits_per_second"]) for pair in order["pairs"]
        ]
    except OSError as error:
        print(wire.encode({"error": str(error)}), flush=True)  # noqa: T201 - the protocol
        return 1
    for flow in flows:
        flow.start()
    print(wire.encode({"ready": True}), flush=True)  # noqa: T201 - the protocol
    sys.stdin.read()
    print(wire.encode({"flows": [flow.stop() for flow in flows]}), flush=True)  # noqa: T201 - the protocol
    return 0


if __name__ == "__main__":
    sys.exit(main())
