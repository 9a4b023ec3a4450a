"""The process that holds a lab: ``python -m thalweg.lab.supervisor``.

1. It reads one line of JSON from standard input: ``{"spec", "name", "unique", "attached", "cgroups"}``.
2. It makes the lab and prints one line: ``{"ready": {"name"}}`` or ``{"error": {"cause", "hint", "kind"}}``.
3. It answers requests, a line of JSON each, on a Unix socket in the lab's folder. A request is
   ``{"do": "status" | "samples" | "start" | "set" | "down", ...}``, an answer ``{"ok": ...}`` or ``{"error": ...}``.
   ``down`` may give the seconds of ``grace`` that programs inside get to end.
4. It ends after ``down``, SIGTERM, SIGINT or SIGHUP. An attached supervisor also ends when its standard input does,
   because its parent has then ended. It prints ``{"failed": reason}`` if the relay fails, and ``{"status": ...}`` at
   the end.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import IO, Final, Protocol

from thalweg import wire
from thalweg.errors import ThalwegError
from thalweg.lab import namespaces, reaper
from thalweg.lab import state as states
from thalweg.lab.values import Answer, Failure, Host, Order, Ready
from thalweg.ui.explain import explain

LOOK_SECONDS: Final = 0.25
# If a caller has not read its answer after this many seconds, the supervisor closes the connection.
ANSWER_SECONDS: Final = 5.0
LONGEST_REQUEST: Final = 1 << 20
MOST_CONNECTIONS: Final = 64
PARENT_SECONDS: Final = 5.0


class CoreLab(Protocol):
    """The part of ``_core.Lab`` that the supervisor uses."""

    def hosts(self) -> str: ...
    def start(self) -> None: ...
    def set(self, link: str, direction: str | None, shape: str) -> None: ...
    def status(self) -> str: ...
    def samples(self) -> str: ...
    def failure(self) -> str | None: ...
    def close(self) -> None: ...


@dataclass
class Connection:
    """A caller's connection, and the received part of its next request."""

    socket: socket.socket
    buffer: bytearray = field(default_factory=bytearray)


class Supervisor:
    """Answers requests about a lab until one of them, a signal or its parent ends it."""

    def __init__(self, lab: CoreLab, state: states.State, output: IO[str] | None = None) -> None:
        """Listen in the lab's folder. An attached supervisor writes notifications to ``output``."""
        self._lab = lab
        self._state = state
        self._output = output
        self._selector = selectors.DefaultSelector()
        self._listener = listen(state)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._connections: list[Connection] = []
        self._started: float | None = None
        self._failed: str | None = None
        self._last: str | None = None
        self._ending = False
        self._grace = namespaces.GRACE_SECONDS
        self._down_requests: list[Connection] = []

    def watch(self, file: IO[bytes] | socket.socket) -> None:
        """End the supervisor when this file has input or is at its end."""
        self._selector.register(file, selectors.EVENT_READ, self.end)

    @property
    def down_requested(self) -> bool:
        """Whether a caller has sent ``down``."""
        return bool(self._down_requests)

    def end(self) -> None:
        """Let ``serve`` return."""
        self._ending = True

    def serve(self) -> None:
        """Answer requests until ``end``, then take the lab down."""
        try:
            while not self._ending:
                for key, _ in self._selector.select(LOOK_SECONDS):
                    key.data()
                self._check()
        finally:
            self._down()

    def _check(self) -> None:
        """Notify the parent, once, if the relay has failed."""
        failure = self._lab.failure()
        if failure is not None and self._failed is None:
            self._failed = failure
            self._notify(wire.encode({"failed": failure}))

    def _accept(self) -> None:
        with suppress(OSError):  # the caller may have closed its connection already
            caller, _ = self._listener.accept()
            if len(self._connections) >= MOST_CONNECTIONS:
                caller.close()
                return
            caller.settimeout(ANSWER_SECONDS)
            connection = Connection(caller)
            self._connections.append(connection)
            self._selector.register(caller, selectors.EVENT_READ, lambda: self._receive(connection))

    def _receive(self, connection: Connection) -> None:
        try:
            content = connection.socket.recv(1 << 16)
        except OSError:
            content = b""
        connection.buffer += content
        if not content or len(connection.buffer) > LONGEST_REQUEST:
            self._hang_up(connection)
            return
        *lines, rest = bytes(connection.buffer).split(b"\n")
        connection.buffer[:] = rest
        for line in lines:
            answer = self._answer(line, connection)
            if answer is not None and not send(connection.socket, answer):
                self._hang_up(connection)
                return

    def _hang_up(self, connection: Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._connections.remove(connection)

    def _answer(self, line: bytes, connection: Connection) -> str | None:
        """Return the answer to a request; None for ``down``, which is answered when the lab is gone."""
        try:
            request = wire.plain(line)
            what = request["do"]
            if what == "down":
                self._grace = min(self._grace, float(request.get("grace", self._grace)))
                self._down_requests.append(connection)
                self._ending = True
                return None
            return _ok(self._do(what, request))
        except (ValueError, KeyError, TypeError) as error:
            return _error("lab", f"not a request: {error}", "Use the same version on both sides")
        except Exception as error:  # noqa: BLE001 - any error of the core becomes the caller's answer
            return _error(getattr(error, "kind", "lab"), *explain(error))

    def _do(self, what: str, request: wire.Table) -> str:
        if what == "status":
            return self._lab.status()
        if what == "samples":
            return self._lab.samples()
        if what == "start":
            return wire.encode(self._start())
        if what == "set":
            self._lab.set(str(request["link"]), str(request["direction"]), wire.encode(request["shape"]))
            return "null"
        raise ValueError(f"{what!r} is not known")

    def _start(self) -> float:
        """Start the lab's clock, once; return its start on the machine's monotonic clock."""
        if self._started is None:
            self._lab.start()
            self._started = time.monotonic()
        return self._started

    def _down(self) -> None:
        self._listener.close()
        with suppress(Exception):  # a failed lab may have no status
            self._last = self._lab.status()
        namespaces.end_inside(self._state.hosts.values(), grace=self._grace)
        self._lab.close()
        states.release(self._state)
        if self._last is not None:
            self._notify(f'{{"status": {self._last}}}')
        for connection in self._down_requests:
            send(connection.socket, _ok(self._last or "null"))
        for connection in self._connections:
            connection.socket.close()
        self._selector.close()

    def _notify(self, notice: str) -> None:
        if self._output is not None:
            with suppress(OSError):  # the parent has closed its end
                self._output.write(notice + "\n")
                self._output.flush()


def listen(state: states.State) -> socket.socket:
    """Return a socket that listens in a lab's folder.

    It is bound through /proc/self/fd, since the folder's path may be longer than the 107 bytes of a socket's path.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(state.folder, os.O_PATH | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{states.SOCKET}")
        listener.listen()
    finally:
        os.close(folder)
    return listener


def send(to: socket.socket, text: str) -> bool:
    """Send a line; return False if that failed."""
    try:
        to.sendall(text.encode() + b"\n")
    except OSError:
        return False
    return True


def _ok(value: str) -> str:
    return f'{{"ok": {value}}}'


def _error(kind: str, cause: str, hint: str) -> str:
    return wire.encode(Answer(error=Failure(kind, cause, hint)))


def main() -> int:
    """Supervise a lab until it ends. Returns the exit code."""
    order = Order(**wire.plain(sys.stdin.buffer.readline()))
    # Handle signals before the lab is made, so that none is lost meanwhile. The relay's threads block these signals.
    wake = _wake_by_signals()
    try:
        reaper.reap()
        state = states.claim(order.name, unique=order.unique)
    except ThalwegError as error:
        print(_error(getattr(error, "kind", "lab"), error.cause, error.hint), flush=True)  # noqa: T201 - the protocol
        return 1
    try:
        lab, state = make(state, order.spec, order.cgroups)
        supervisor = Supervisor(lab, state, sys.stdout if order.attached else None)
    except Exception as error:  # noqa: BLE001 - any error goes to the parent
        states.release(state)
        print(_error(getattr(error, "kind", "lab"), *explain(error)), flush=True)  # noqa: T201 - the protocol
        return 1
    print(wire.encode(Answer(ready=Ready(state.name))), flush=True)  # noqa: T201 - the protocol
    supervisor.watch(wake)
    if order.attached:
        supervisor.watch(sys.stdin.buffer)
    else:
        _leave_terminal()
    parent = os.pidfd_open(os.getppid())
    supervisor.serve()
    if order.attached and not supervisor.down_requested:
        # The parent has closed its end of the pipe, perhaps because it is ending. The reaper removes what it has left
        # only when it has ended.
        select.select([parent], [], [], PARENT_SECONDS)
        reaper.reap()
    os.close(parent)
    return 0


def make(state: states.State, spec: str, cgroups: tuple[str, ...] = ()) -> tuple[CoreLab, states.State]:
    """Make a lab and write its state and hosts file to its folder. Raises CoreError, OSError."""
    from thalweg import _core

    lab = _core.Lab(spec)
    try:
        hosts = {
            name: Host(**host, cookie=namespaces.cookie_of(host["namespace"]))
            for name, host in wire.plain(lab.hosts()).items()
        }
        links = tuple({key: link[key] for key in ("name", "a", "b")} for link in wire.plain(spec)["links"])
        state = replace(state, hosts=hosts, links=links, cgroups=tuple(cgroups))
        state.write_hosts()
        state.write()
    except BaseException:
        lab.close()
        raise
    return lab, state


def _wake_by_signals() -> socket.socket:
    """Return a socket that becomes readable on SIGTERM, SIGINT or SIGHUP."""
    wake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.detach())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return wake


def _leave_terminal() -> None:
    """Redirect the standard streams to /dev/null, so that this process holds no file of its starter open."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
