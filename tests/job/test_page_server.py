"""A stranger at the metrics port can use only a few connections and one thread, and none of the job's descriptors."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from thalweg.job.common import page_server
from thalweg.job.common.page_server import MAX_CONNECTIONS, PLAIN, TIMEOUT, PageServer, origin

LOCAL = "127.0.0.1"


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def broken() -> tuple[str, bytes]:
    raise ZeroDivisionError


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock) -> Iterator[PageServer]:
    """A server without a thread: the test calls ``turn``."""
    pages = {"/health": lambda: (PLAIN, b"ok\n"), "/long": lambda: (PLAIN, bytes(1 << 24)), "/broken": broken}
    made = PageServer(LOCAL, 0, pages, clock)
    yield made
    made.close()


@pytest.fixture
def connect(server: PageServer) -> Iterator[Callable[..., socket.socket]]:
    """Connect from an address of the loopback network, and let the server accept the connection."""
    with ExitStack() as stack:

        def made(source: str = LOCAL, words: bytes = b"") -> socket.socket:
            caller = socket.create_connection((LOCAL, server.port), timeout=60, source_address=(source, 0))
            stack.enter_context(caller)
            caller.sendall(words)
            server.turn(60)
            return caller

        yield made


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def answered(server: PageServer, caller: socket.socket) -> bytes:
    """Call ``turn`` until the answer is complete."""
    caller.setblocking(False)
    heard = bytearray()
    while True:
        server.turn(0.01)
        try:
            more = caller.recv(1 << 20)
        except BlockingIOError:
            continue
        if not more:
            return bytes(heard)
        heard += more


@pytest.mark.parametrize(
    ("words", "status", "content"),
    [
        (get("/health"), b"200 OK", b"ok\n"),
        (get("/health?a=1"), b"200 OK", b"ok\n"),
        (b"HEAD /health HTTP/1.0\n\n", b"200 OK", b""),
        (get("/"), b"404 Not Found", b"404 Not Found\n"),
        (get("/broken"), b"500 Internal Server Error", b"500 Internal Server Error\n"),
        (b"POST /health HTTP/1.1\r\n\r\n", b"405 Method Not Allowed", b"405 Method Not Allowed\n"),
        (b"\x16\x03\x01 what\r\n\r\n", b"400 Bad Request", b"400 Bad Request\n"),
        (b"\r\n\r\n", b"400 Bad Request", b"400 Bad Request\n"),
        (get("/long"), b"200 OK", bytes(1 << 24)),
    ],
)
def test_each_request_has_its_answer(
    server: PageServer, connect: Callable[..., socket.socket], words: bytes, status: bytes, content: bytes
) -> None:
    head, _, body = answered(server, connect(words=words)).partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"HTTP/1.1 " + status
    assert body == content
    assert server.connections == 0


def test_silent_connections_from_one_address_take_half_of_the_places(
    server: PageServer, connect: Callable[..., socket.socket]
) -> None:
    silent = [connect("127.0.0.2") for _ in range(3 * MAX_CONNECTIONS)]
    assert server.connections == MAX_CONNECTIONS // 2
    gone = [caller.recv(1) for caller in silent[: -MAX_CONNECTIONS // 2]]
    assert gone == [b""] * len(gone), "the oldest gave way"
    assert b"ok\n" in answered(server, connect(words=get("/health"))), "and others are let in"
    assert server.connections == MAX_CONNECTIONS // 2


def test_many_addresses_take_no_more_than_all_places(server: PageServer, connect: Callable[..., socket.socket]) -> None:
    for number in range(3 * MAX_CONNECTIONS):
        connect(f"127.0.1.{number + 1}")
    for _ in range(MAX_CONNECTIONS // 2):
        connect("127.0.0.2")
    assert server.connections == MAX_CONNECTIONS
    assert b"ok\n" in answered(server, connect(words=get("/health")))


def test_slow_connections_are_closed(server: PageServer, connect: Callable[..., socket.socket], clock: Clock) -> None:
    silent, slow, greedy = connect(), connect(words=b"GET /hea"), connect(words=get("/long"))
    server.turn(0)
    clock.now = TIMEOUT
    server.turn(0)
    assert server.connections == 3
    clock.now = TIMEOUT + 1
    server.turn(0)
    assert server.connections == 0
    assert silent.recv(1) == slow.recv(1) == b""
    del greedy


def test_a_request_without_end_is_cut(server: PageServer, connect: Callable[..., socket.socket]) -> None:
    caller = connect(words=b"GET /" + b"a" * 3 * page_server.LONGEST_REQUEST)
    for _ in range(4):
        server.turn(0)
    assert server.connections == 0
    del caller


def test_without_a_descriptor_nobody_is_accepted_for_a_while(
    server: PageServer, connect: Callable[..., socket.socket], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def accept(self) -> None:
            raise OSError(errno.EMFILE, "too many open files")

    listener = server._listener
    with monkeypatch.context() as patch:
        patch.setattr(server, "_listener", Full())
        patch.setattr(server._selector, "unregister", lambda _: None)
        server._accept()
    server._selector.unregister(listener)
    caller = socket.create_connection((LOCAL, server.port), timeout=60)
    server.turn(0)
    assert server.connections == 0, "it does not spin"
    clock.now = 1.0
    server.turn(0)
    server.turn(60)
    assert server.connections == 1
    caller.close()


def test_the_server_has_one_thread_and_closes_all_sockets() -> None:
    before = threading.active_count()
    server = PageServer(LOCAL, 0, {"/health": lambda: (PLAIN, b"ok\n")})
    server.start()
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection((LOCAL, server.port), timeout=60))
        with socket.create_connection((LOCAL, server.port), timeout=60) as caller:
            caller.sendall(get("/health"))
            assert b"ok\n" in b"".join(iter(lambda: caller.recv(4096), b""))
        assert threading.active_count() == before + 1
        assert server.connections <= MAX_CONNECTIONS
        server.close()
        server.close()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("2001:db8::1", "2001:db8::2:3", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%lo", "fe80::2", True),
    ],
)
def test_a_network_of_ipv6_counts_as_one_address(one: str, other: str, same: bool) -> None:
    assert (origin(one) == origin(other)) == same
