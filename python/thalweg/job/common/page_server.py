"""A small HTTP server for a job's metrics, with one thread. Its limits protect it from unauthenticated peers.

They are those of a job's server (``docs/explanation/security.md``). There are at most ``MAX_CONNECTIONS`` connections,
and at most half of them from one address. A connection is closed ``TIMEOUT`` seconds after it was accepted. A new
connection is always accepted. If there are then too many, the oldest connection of the address that has the most is
closed.
"""

from __future__ import annotations

import ipaddress
import logging
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

MAX_CONNECTIONS: Final = 16
TIMEOUT: Final = 5.0
LONGEST_REQUEST: Final = 8192
#: Maximum number of connections that the kernel queues until they are accepted.
BACKLOG: Final = 64
#: Maximum number of bytes of one send, so that one caller does not hold up the others.
MAX_SEND: Final = 1 << 16
#: Seconds for which no connection is accepted after the process ran out of file descriptors.
PAUSE: Final = 0.1
PLAIN: Final = "text/plain; charset=utf-8"

#: Makes the answer for a path: returns its content type and its content.
Page = Callable[[], tuple[str, bytes]]


@dataclass
class _Caller:
    """A connection, with the received part of its request and the unsent part of its answer."""

    socket: socket.socket
    origin: str
    since: float
    request: bytearray = field(default_factory=bytearray)
    answer: memoryview | None = None


class PageServer:
    """Answers GET and HEAD for a few paths, from ``start`` until ``close``."""

    def __init__(
        self, host: str, port: int, pages: Mapping[str, Page], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Listen. Requests are answered once ``start`` was called. Raises OSError."""
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._pages, self._clock = pages, clock
        self._callers: list[_Caller] = []
        self._paused_until = 0.0
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake, self._waker = socket.socketpair()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._callers)

    def start(self) -> None:
        """Start the thread that answers."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering, and close the listener and all connections. Idempotent."""
        if not self._is_over:
            self._is_over = True
            self._waker.send(b"\0")
            if self._thread.is_alive():
                self._thread.join()
            for caller in list(self._callers):
                self._drop(caller)
            self._selector.close()
            for one in (self._listener, self._wake, self._waker):
                one.close()

    def _run(self) -> None:
        while not self._is_over:
            self.turn(PAUSE if self._paused_until else 1.0 if self._callers else None)

    def turn(self, wait: float | None) -> None:
        """Wait ``wait`` seconds at most, handle the sockets that are ready, and close connections that are too old."""
        for key, _ in self._selector.select(wait):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, _Caller):
                self._serve(key.data)
        now = self._clock()
        for caller in [one for one in self._callers if now - one.since > TIMEOUT]:
            self._drop(caller)
        if self._paused_until and now >= self._paused_until:
            self._paused_until = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self) -> None:
        try:
            accepted, address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor is left: without a pause this thread would spin
            self._selector.unregister(self._listener)
            self._paused_until = self._clock() + PAUSE
            return
        accepted.setblocking(False)
        caller = _Caller(accepted, origin(address[0]), self._clock())
        self._make_room(caller.origin)
        self._callers.append(caller)
        self._selector.register(accepted, selectors.EVENT_READ, caller)

    def _make_room(self, newcomer: str) -> None:
        held = Counter(caller.origin for caller in self._callers)
        held[newcomer] += 1
        if held[newcomer] > MAX_CONNECTIONS // 2:
            most = newcomer
        elif len(self._callers) >= MAX_CONNECTIONS:
            most = max(held, key=lambda one: held[one])
        else:
            return
        self._drop(next(caller for caller in self._callers if caller.origin == most))

    def _serve(self, caller: _Caller) -> None:
        try:
            if caller.answer is None:
                self._read(caller)
            else:
                self._write(caller)
        except BlockingIOError:
            return
        except OSError:  # the peer has gone
            self._drop(caller)

    def _read(self, caller: _Caller) -> None:
        more = caller.socket.recv(LONGEST_REQUEST)
        caller.request += more
        ended = b"\r\n\r\n" in caller.request or b"\n\n" in caller.request
        if not more or (len(caller.request) > LONGEST_REQUEST and not ended):
            self._drop(caller)
        elif ended:
            caller.answer = memoryview(self._answer(bytes(caller.request)))
            self._selector.modify(caller.socket, selectors.EVENT_WRITE, caller)
            self._write(caller)

    def _write(self, caller: _Caller) -> None:
        rest = caller.answer or memoryview(b"")
        caller.answer = rest[caller.socket.send(rest[:MAX_SEND]) :]
        if not caller.answer:
            with suppress(OSError):
                caller.socket.shutdown(socket.SHUT_WR)
            self._drop(caller)

    def _drop(self, caller: _Caller) -> None:
        if caller in self._callers:
            self._callers.remove(caller)
            self._selector.unregister(caller.socket)
            caller.socket.close()

    def _answer(self, request: bytes) -> bytes:
        words = request.split(b"\n", 1)[0].split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/"):
            return _message(HTTPStatus.BAD_REQUEST)
        if words[0] not in (b"GET", b"HEAD"):
            return _message(HTTPStatus.METHOD_NOT_ALLOWED)
        page = self._pages.get(words[1].partition(b"?")[0].decode("ascii", "replace"))
        if page is None:
            return _message(HTTPStatus.NOT_FOUND)
        try:
            kind, content = page()
        except Exception:
            logging.getLogger(__name__).exception("a page cannot be made")
            return _message(HTTPStatus.INTERNAL_SERVER_ERROR)
        return _message(HTTPStatus.OK, kind, content, with_content=words[0] == b"GET")


def origin(address: str) -> str:
    """Return the key by which connections are counted: an IPv4 address, or an IPv6 /64 network.

    One customer usually has a whole IPv6 /64 network, with any number of addresses.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    return str(ip.ipv4_mapped or ipaddress.ip_network((int(ip) >> 64 << 64, 64)))


def _message(
    status: HTTPStatus, kind: str = PLAIN, content: bytes | None = None, *, with_content: bool = True
) -> bytes:
    body = f"{status.value} {status.phrase}\n".encode() if content is None else content
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (body if with_content else b"")
