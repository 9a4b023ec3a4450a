"""Private brokers: started for a run with a configuration and a login of their own, watched, and ended with it.

Each broker program is a ``Program`` in a file of its own. It gets a ``Site``: a folder that only this user can read, an
address, a port and a login. It writes its configuration there, returns the command that starts it, and interprets the
lines of its log. ``Broker`` does the rest for all programs. The broker's parent process is a supervisor
(``supervisor.py``), which ends with the run. So no process or folder is left, even if the run is killed.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Protocol, TypeVar

from thalweg import wire
from thalweg.brokers.order import SupervisorOrder
from thalweg.errors import BrokerError
from thalweg.lab import inside
from thalweg.lab.state import is_alive, start_time
from thalweg.machine import Usage
from thalweg.machine.grace import is_hurried

# Seconds that a broker may take to start. RabbitMQ takes more than a minute on a machine whose cores are busy.
READY_SECONDS: Final = 300.0
ANSWER_SECONDS: Final = 5.0
# Number of ports that are tried: a free port may be taken before the broker listens.
MOST_TRIES: Final = 5
# Maximum number of times that a run starts its broker again after it has died.
MOST_RESTARTS: Final = 3
# How many lines of the log are kept, and how many of them an error quotes.
KEPT_LINES: Final = 50
LAST_LINES: Final = 3
LONGEST_LINE: Final = 1 << 12
SBIN: Final = ("/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/lib/rabbitmq/bin")
_FOLDER: Final = re.compile(r"thalweg-broker-([0-9]{1,10})-([0-9]{1,20})-\w+", re.ASCII)
T = TypeVar("T")


@dataclass(frozen=True)
class Login:
    """The login of a party at a broker. It is never printed."""

    user: str
    password: str = field(repr=False)

    @classmethod
    def make(cls) -> Login:
        """Return a login with a random password."""
        return cls("thalweg", secrets.token_hex(24))

    def write(self, path: Path) -> None:
        """Write it as one line ``user:password`` that only this user can read. Raises OSError."""
        write_private(path, f"{self.user}:{self.password}\n")


@dataclass(frozen=True)
class BrokerPlace:
    """Where a broker runs: the address for its clients, the network namespace of its host in a lab, and its cgroup.

    ``party`` names its host. In FedComm the broker runs on the server's host (section IV.A).
    """

    address: str = "127.0.0.1"
    namespace: str | None = None
    cgroup: str | None = None
    party: str = "server"

    def within(self, do: Callable[[], T]) -> T:
        """Call ``do`` in the broker's network namespace and return its result."""
        from thalweg.lab import namespaces

        return do() if self.namespace is None else namespaces.within(self.namespace, do)

    def free_port(self) -> int:
        """Return a port of the address that is free now."""

        def find() -> int:
            host = self.address.strip("[]")
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as any_socket:
                any_socket.bind((host, 0))
                return int(any_socket.getsockname()[1])

        return self.within(find)


@dataclass(frozen=True)
class Event:
    """What happened to the broker, and how many seconds after its start."""

    seconds: float
    what: str


@dataclass(frozen=True)
class BrokerFacts:
    """What the manifest holds about the broker."""

    program: str
    version: str | None
    party: str
    encrypted: bool
    events: Sequence[Event]


@dataclass(frozen=True)
class Tls:
    """The broker's certificates, in PEM. With ``require_client`` clients must show a certificate too."""

    authority: str
    certificate: str
    key: str = field(repr=False)
    require_client: bool = False


@dataclass(frozen=True)
class Site:
    """The configuration of a broker.

    ``folder`` is its own: only this user can read it, and it is removed at the end.
    """

    folder: Path
    place: BrokerPlace
    port: int
    login: Login
    tls: Tls | None = None
    # Maximum size of a message, and maximum size of all messages that wait for one client, in bytes.
    message_bytes: int = 8 << 20
    queue_bytes: int = 64 << 20

    def write(self, name: str, text: str) -> Path:
        """Write a file that only this user can read and return its path. Raises OSError."""
        path = self.folder / name
        write_private(path, text)
        return path


@dataclass(frozen=True)
class Launch:
    """How to start a broker: the command, additional environment variables, and seconds to wait for it to end."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    grace: float = 5.0


@dataclass(frozen=True)
class Sign:
    """The meaning of a line of a broker's log. ``kind``: ``ready``, ``port taken``, or ``event`` with a ``text``."""

    kind: str
    text: str = ""


@dataclass(frozen=True)
class _Message(Usage):
    """A message of the supervisor: the broker was started (process id), could not be started, or has ended (exit code).

    ``use`` is the answer to a request. The message about the broker's end contains the same values.
    """

    started: int | None = None
    error: str | None = None
    ended: int | None = None
    use: Usage | None = None

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> _Message:
        """Return the message whose fields a table has. Raises TypeError for unknown fields."""
        use = table.get("use")
        return cls(**{**table, "use": None if use is None else Usage(**use)})


class Program(Protocol):
    """A broker program, such as mosquitto."""

    @property
    def name(self) -> str:
        """The program's name, also the name of its Debian package."""

    def find(self) -> str | None:
        """Return the path of the program, or None if it is not installed."""

    def version(self) -> str | None:
        """Return its version, or None if it is unknown."""

    def launch(self, site: Site) -> Launch:
        """Write its configuration and return how to start it. Raises OSError, BrokerError."""

    def read(self, line: str) -> Sign | None:
        """Return what a line of its log means; None for a line without a meaning here."""


class Broker:
    """A running broker, as a context manager: its end ends the broker's processes and removes its folder.

    A broker that dies is started again at the same port, at most ``MOST_RESTARTS`` times. ``on_event`` is called with
    the text of each event, in a thread of the broker.
    """

    def __init__(
        self,
        program: Program,
        place: BrokerPlace,
        *,
        tls: Tls | None = None,
        limits: Mapping[str, int] | None = None,
        on_event: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Start it and wait until it takes connections. ``limits`` are those of ``Site``. Raises BrokerError."""
        if program.find() is None:
            raise BrokerError(
                f"{program.name} is not installed", f"Install it (on Debian: apt install {program.name}), or give a URL"
            )
        reap()
        self.program, self.place, self.login = program, place, Login.make()
        self.events: list[Event] = []
        self._tls, self._limits, self._on_event = tls, dict(limits or {}), on_event
        self._began = time.monotonic()
        self._ending = threading.Event()
        # The resource usage of the broker's processes that have ended.
        self._before = Usage(0.0, 0)
        self._run = self._start(None)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The port at which the broker listens."""
        return self._run.site.port

    @property
    def pid(self) -> int:
        """The process id of its main process."""
        return self._run.pid

    @property
    def folder(self) -> Path:
        """The folder of the broker's configuration."""
        return self._run.site.folder

    def url(self, scheme: str) -> str:
        """Return the address to which parties connect."""
        return f"{scheme}://{self.place.address}:{self.port}"

    def usage(self) -> Usage:
        """Return ``cpu_seconds`` since it was ready, and ``peak_rss_bytes``, both of all its processes and restarts."""
        with suppress(BrokerError):
            self._run.ask_use()
        return _together(self._before, self._run.used)

    def facts(self) -> BrokerFacts:
        """Return the facts about the broker for the manifest."""
        return BrokerFacts(
            self.program.name, self.program.version(), self.place.party, self._tls is not None, list(self.events)
        )

    def stop(self) -> None:
        """End the broker and remove its folder. Idempotent."""
        self._ending.set()
        self._run.stop()
        self._watcher.join()

    def _start(self, port: int | None) -> _Run:
        """Start the broker at a port, or at any free one."""
        for _ in range(MOST_TRIES):
            run = _Run(self.program, self._site(port or self.place.free_port()), self._event)
            try:
                is_ready = run.wait()
            except BaseException:  # also Ctrl-C while the broker starts
                run.stop()
                raise
            if is_ready:
                return run
            run.stop()
            if port is not None or not run.port_taken:
                break
        last = "; ".join(list(run.lines)[-LAST_LINES:]) or "its log is empty"
        raise BrokerError(f"{self.program.name} did not start: {last}", "Correct what it says, or give a broker's URL")

    def _site(self, port: int) -> Site:
        own = f"thalweg-broker-{os.getpid()}-{start_time(os.getpid()) or 0}-"
        return Site(Path(tempfile.mkdtemp(prefix=own)), self.place, port, self.login, self._tls, **self._limits)

    def _watch(self) -> None:
        """Start the broker again whenever it dies."""
        for restarts in range(MOST_RESTARTS + 1):
            self._run.ended.wait()
            if self._ending.is_set():
                return
            self._run.stop()
            self._event(f"the broker {self.program.name} {self._run.how}")
            if restarts == MOST_RESTARTS:
                self._event(f"it is not started again: it has died {restarts + 1} times")
                return
            self._keep_use()
            try:
                again = self._start(self.port)
            except (BrokerError, OSError) as error:
                self._event(str(error))
                return
            self._run = again
            if self._ending.is_set():  # ``stop`` may have stopped the run before this one
                again.stop()
                return
            self._event(f"the broker {self.program.name} was started again")

    def _keep_use(self) -> None:
        self._before = _together(self._before, self._run.used)

    def _event(self, text: str) -> None:
        self.events.append(Event(time.monotonic() - self._began, text))
        self._on_event(text)


def _together(before: Usage, now: Usage) -> Usage:
    """Return the resource usage of processes that ran one after the other, as one."""
    cpu, peak = (before.cpu_seconds or 0.0) + (now.cpu_seconds or 0.0), now.peak_rss_bytes or 0
    return Usage(cpu, max(before.peak_rss_bytes or 0, peak))


class _Run:
    """One process of a broker under its supervisor, from its start to its end."""

    def __init__(self, program: Program, site: Site, event: Callable[[str], None]) -> None:
        self.site, self.pid, self.port_taken = site, 0, False
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.used = Usage(0.0, 0)
        self.how = "ended"
        self.ended = threading.Event()
        self._program, self._event = program, event
        self._settled = threading.Event()  # set when the broker is ready, or has ended
        self._ready = False
        self._answered = threading.Event()
        self._supervisor = self._spawn()
        self._threads = [
            threading.Thread(target=read, args=(stream,), daemon=True)
            for read, stream in ((self._receive, self._supervisor.stdout), (self._read, self._supervisor.stderr))
        ]
        for thread in self._threads:
            thread.start()

    def wait(self) -> bool:
        """Wait until it accepts connections; return False if it has ended or is not ready in time."""
        self._settled.wait(READY_SECONDS)
        if self._ready:
            self._request("count")
        elif not self._settled.is_set():
            self.lines.append(f"it was not ready after {READY_SECONDS:.0f} s")
        return self._ready

    def ask_use(self) -> None:
        """Ask the supervisor for the broker's resource usage, and update ``used``. Raises BrokerError."""
        self._answered.clear()
        self._request("use")
        if not self._answered.wait(ANSWER_SECONDS) and not self.ended.is_set():
            raise BrokerError("the supervisor of the broker does not answer", "Start again")

    def stop(self) -> None:
        """End the process. Idempotent."""
        self._request("kill" if is_hurried() else "stop")
        with suppress(OSError, ValueError):
            if self._supervisor.stdin is not None:
                self._supervisor.stdin.close()
        self._supervisor.wait()
        for thread in self._threads:
            thread.join()
        shutil.rmtree(self.site.folder, ignore_errors=True)

    def _spawn(self) -> subprocess.Popen[bytes]:
        try:
            launch = self._program.launch(self.site)
            supervisor = subprocess.Popen(
                [sys.executable, "-m", "thalweg.brokers.supervisor"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except BaseException:
            shutil.rmtree(self.site.folder, ignore_errors=True)
            raise
        order = SupervisorOrder(
            command=list(launch.command),
            environment={**os.environ, **launch.environment},
            folder=str(self.site.folder),
            place=inside.ProcessPlace(self.site.place.namespace, cgroup=self.site.place.cgroup),
            grace=launch.grace,
        )
        _write(supervisor.stdin, order)
        return supervisor

    def _request(self, request: str) -> None:
        _write(self._supervisor.stdin, request)

    def _receive(self, stream: IO[bytes]) -> None:
        """Receive the supervisor's messages until it ends with the broker."""
        with stream:
            for line in stream:
                self._handle(_Message.of(wire.plain(line)))
        self._supervisor.wait()
        self._settled.set()
        self.ended.set()
        self._answered.set()

    def _handle(self, message: _Message) -> None:
        self.pid = message.started or self.pid
        if message.error is not None:
            self.lines.append(message.error)
        if message.ended is not None:
            code = message.ended
            self.how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        used = message.use if message.ended is None else Usage(message.cpu_seconds, message.peak_rss_bytes)
        if used is not None:
            self.used = used
            self._answered.set()

    def _read(self, stream: IO[bytes]) -> None:
        """Read the broker's log, line by line."""
        with stream:
            while line := stream.readline(LONGEST_LINE):
                text = line.decode(errors="replace").strip()
                if text:
                    self.lines.append(text)
                    self._handle_sign(self._program.read(text))

    def _handle_sign(self, sign: Sign | None) -> None:
        if sign is None:
            return
        if sign.kind == "ready":
            self._ready = True
            self._settled.set()
        elif sign.kind == "port taken":
            self.port_taken = True
        else:
            self._event(sign.text)


def reap() -> None:
    """Remove the folders of runs that were killed together with their supervisors."""
    for folder in Path(tempfile.gettempdir()).iterdir():
        owner = _FOLDER.fullmatch(folder.name)
        with suppress(OSError):
            if (
                owner
                and folder.stat(follow_symlinks=False).st_uid == os.geteuid()
                and not is_alive(int(owner[1]), int(owner[2]))
            ):
                shutil.rmtree(folder, ignore_errors=True)


def installed(name: str) -> str | None:
    """Return the path of a program, from PATH or root's usual folders; None if it is not installed."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *SBIN]))


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read. Raises OSError, also if the file exists."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(text)


def _write(stream: IO[bytes] | None, message: object) -> None:
    # If the supervisor has ended, ``_receive`` notices it.
    with suppress(OSError, ValueError):
        if stream is not None:
            stream.write(wire.encode(message).encode() + b"\n")
            stream.flush()
