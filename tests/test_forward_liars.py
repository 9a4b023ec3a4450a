"""Hostile ends of forwarded paths: programs receive only bytes that were sent to them, and honest links stay open."""

from __future__ import annotations

import errno
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from random import Random
from typing import Any, Final

import pytest

from tests.hostile import forwarding
from tests.hostile.forwarding import LIES, LIMIT, WINDOW, Lie
from tests.ports import free_ports
from thalweg import _core

SEEDS: Final = 20
LOCAL: Final = "127.0.0.1"
# In tests with a silent peer: the seconds after which it is disconnected.
LIVENESS: Final = 3.0
# Larger than the windows, so that programs wait for credit.
MOST_BYTES: Final = 4 * WINDOW
Event = dict[str, Any]


class Over(Exception):  # noqa: N818 - no error: the test is over
    pass


class End:
    """An end of a path, in a thread. After ``over`` is set, it ends at its next event."""

    def __init__(self, **config: Any) -> None:
        own = {"window": WINDOW, "liveness": LIMIT, "timeout": LIMIT, "connections": 8}
        self._forwarder = _core.Forwarder(json.dumps({**own, **config}))
        listens = json.loads(self._forwarder.listening)["listen"]
        self.port = int(listens.rpartition(":")[2])
        self._is_far = "to" in config
        self.events: list[Event] = []
        self.over = threading.Event()
        self._told = threading.Condition()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(Over):
            self._forwarder.serve(self._hear)

    def _hear(self, text: str) -> None:
        with self._told:
            self.events.append(json.loads(text))
            self._told.notify_all()
        if self.over.is_set():
            raise Over

    def until(self, wanted: Callable[[Event], bool], count: int = 1) -> list[Event]:
        """Wait for ``count`` of the wanted events and return them."""
        with self._told:
            assert self._told.wait_for(lambda: sum(map(wanted, self.events)) >= count, LIMIT), self.events
            return list(filter(wanted, self.events))

    def close(self) -> None:
        """End the thread, by causing an event that it receives."""
        self.over.set()
        with ExitStack() as stack:
            with suppress(OSError):  # an earlier event has ended the thread already
                last = stack.enter_context(socket.create_connection((LOCAL, self.port), timeout=LIMIT))
                if self._is_far:
                    forwarding.let_in(forwarding.Link(last), "last", Random(0))
            self._thread.join(LIMIT)
        assert not self._thread.is_alive(), "it does not end"
        self._forwarder.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@contextmanager
def reverser() -> Iterator[int]:
    """Serve connections: receive all bytes, then send them back in reverse."""

    def serve(peer: socket.socket) -> None:
        with peer, suppress(OSError):  # a liar's connection is reset
            parts = list(iter(lambda: peer.recv(1 << 16), b""))
            peer.sendall(b"".join(parts)[::-1])

    def accept() -> None:
        with suppress(OSError):  # the test is over
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server((LOCAL, 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(LIMIT)


def ask(port: int, message: bytes) -> bytes:
    with socket.create_connection((LOCAL, port), timeout=LIMIT) as program:
        program.sendall(message)
        try:
            program.shutdown(socket.SHUT_WR)
        except OSError as error:
            # The connection has ended already. The next read shows whether it was reset.
            if error.errno != errno.ENOTCONN:
                raise
        return b"".join(iter(lambda: program.recv(1 << 16), b""))


def chosen(random: Random) -> tuple[list[Lie], float]:
    """Return some lies, and the seconds after which a silent peer is disconnected."""
    lies = random.sample(LIES, random.randint(1, 6))
    return lies, LIVENESS if any(lie.then == "stays" for lie in lies) else LIMIT


def check(lie: Lie, down: Event) -> None:
    """Check the events about a link that a lie has ended."""
    assert lie.words is None or lie.words in down["why"], down
    assert down["why"].isprintable()
    assert len(down["why"]) <= 1024


def is_down(event: Event, peer: str = "") -> bool:
    return event.get("up") is False and str(event["peer"]).startswith(peer)


def is_end(event: Event) -> bool:
    return bool(event["event"] == "end")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_far_end_serves_honest_programs_beside_lying_near_ends(stack: ExitStack, seed: int) -> None:
    random = Random(seed)
    lies_told, liveness = chosen(random)
    lies = {f"liar-{at}": lie for at, lie in enumerate(lies_told)}
    messages = [random.randbytes(random.randint(0, MOST_BYTES)) for _ in range(4)]
    server = stack.enter_context(reverser())
    far = End(listen=f"tcp://{LOCAL}:0", to=f"{LOCAL}:{server}", liveness=liveness)
    stack.callback(far.close)
    near = End(listen=f"{LOCAL}:0", via=f"tcp://{LOCAL}:{far.port}", name="honest")
    stack.callback(near.close)

    def lie(name: str, seed: int) -> None:
        with suppress(OSError), socket.create_connection((LOCAL, far.port), timeout=LIMIT) as connection:
            link = forwarding.Link(connection)
            forwarding.let_in(link, name, Random(seed))
            link.send_lie(lies[name], opens=True)

    liars = [threading.Thread(target=lie, args=(name, seed), daemon=True) for name in lies]
    for liar in liars:
        liar.start()
    for message in messages:
        assert ask(near.port, message) == message[::-1]
    for liar in liars:
        liar.join(LIMIT)
        assert not liar.is_alive(), "a liar is still there"
    for name, told_by in lies.items():
        check(told_by, *far.until(partial(is_down, peer=f"{name} at ")))
    assert ask(near.port, b"once more") == b"erom ecno"
    assert [event["up"] for event in near.events if event["event"] == "link"] == [True]
    ends = near.until(is_end, len(messages) + 1)
    sizes = [*map(len, messages), len(b"once more")]
    assert all((end["received"], end["error"]) == (end["sent"], None) for end in ends)
    assert sorted(end["sent"] for end in ends) == sorted(sizes)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_near_end_resets_programs_of_lying_far_ends_and_goes_on(stack: ExitStack, seed: int) -> None:
    random = Random(seed)
    lies, liveness = chosen(random)
    windows = [random.choice([0, 1, WINDOW, forwarding.MOST]) for _ in lies]
    (port,) = free_ports(1)  # an honest end listens there later, so nobody else may get it meanwhile
    listener = stack.enter_context(socket.create_server((LOCAL, port)))
    listener.settimeout(LIMIT)
    url = f"tcp://{LOCAL}:{port}"

    def lie() -> None:
        for at, (one_lie, window) in enumerate(zip(lies, windows, strict=True)):
            silence = int(liveness * 1e6) if one_lie.then == "stays" else forwarding.MOST
            link = forwarding.far_end(listener, Random(at), (window, random.choice([0, 1, 2**32 - 1]), silence))
            with suppress(OSError), link.connection:
                link.hear_of_stream()
                link.send_lie(one_lie, opens=False)
        listener.close()

    liar = threading.Thread(target=lie, daemon=True)
    liar.start()
    near = End(listen=f"{LOCAL}:0", via=url, name="honest")
    for number, one_lie in enumerate(lies, 1):
        with pytest.raises(OSError, match=r"reset|pipe"):
            ask(near.port, b"a question")
        check(one_lie, near.until(is_down, number)[-1])
    liar.join(LIMIT)
    far = End(listen=url, to=f"{LOCAL}:{stack.enter_context(reverser())}")
    stack.callback(far.close)
    stack.callback(near.close)
    message = random.randbytes(MOST_BYTES)
    assert ask(near.port, message) == message[::-1]
    assert len(list(filter(is_down, near.events))) == len(lies)
