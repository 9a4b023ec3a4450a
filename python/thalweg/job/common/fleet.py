"""``Fleet``: starts, watches and ends the client processes of ``thalweg run``, each by its process id.

Each process reads its order as a line of JSON from standard input, and writes lines of JSON to standard output. The
lines that it writes while it works have the key ``say``. The last line is its final report. Nodes of graphs and trees
use the same protocol.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Generic, TypeAlias

from thalweg import _core, apps, machine, training_progress, wire
from thalweg.apps.received_config import ReceivedConfig
from thalweg.errors import RoundError
from thalweg.job.common.farewell import farewell, reason
from thalweg.job.common.fork_server import ForkedProcess, ForkServer
from thalweg.job.common.leftovers import end_group
from thalweg.job.common.messages import AnyOrder, Failure, Line, Note, Order, Report, Trained, Work
from thalweg.job.common.messages import Orders as AnyOrders
from thalweg.job.common.parties import NamedApp, PartyBuilder
from thalweg.job.star.participant import take_part
from thalweg.lab import guest
from thalweg.lab.inside import ProcessPlace
from thalweg.machine.grace import within

if TYPE_CHECKING:
    from thalweg.plan.options import CoreOptions

END_SECONDS: Final = 10.0
# The module that a client's process runs.
WORKER: Final = "thalweg.job.star.worker"
# Called with a client that has ended early, and why, in the thread that watches this client.
OnEnd = Callable[[str, str], None]
# Called with a client, a round, and the fraction of the round's training that the client has done, in any thread.
OnTraining = Callable[[str, int, float], None]
# Called with a line that a process writes while it works, in the thread that watches this process.
OnLine = Callable[[str, Line], None]
# A fork server for each number of threads: libraries read that from the environment when they are imported.
ForkServers: TypeAlias = dict[int | None, ForkServer]


@dataclass
class Member:
    """One client: its process (None if it is a thread), the thread that watches or runs it, and its final report."""

    name: str
    thread: threading.Thread
    process: ForkedProcess | None = None
    report: Report | None = None
    failure: str | None = None
    # Whether a signal killed its process, so that it wrote no final report.
    was_killed: bool = False

    def join(self, seconds: float) -> None:
        """Wait until it has ended, at most ``seconds``. Its thread may never have started, if Ctrl-C came before."""
        if self.thread.is_alive():
            self.thread.join(seconds)

    def is_running(self) -> bool:
        """Return whether its process is running, or its output is still being read. False for a thread."""
        return self.process is not None and (self.thread.is_alive() or self.process.poll() is None)


@dataclass(frozen=True, kw_only=True)
class ClientOrder(Order):
    """The order of a client's process: the URL to connect to, the options for the core, and what to train.

    ``config`` is the first round's config. ``app`` is the user's own app, and ``tensors`` are patterns of the tensors
    that travel.
    """

    url: str
    options: CoreOptions
    config: ReceivedConfig
    data_root: str | None
    app: NamedApp | None = None
    tensors: Sequence[str] | None = None
    # Whether the process should report how far its training is, for a progress display.
    shows_training: bool = False

    @classmethod
    def of(cls, table: Line) -> ClientOrder:
        app = table.get("app")
        made = {"app": None if app is None else NamedApp(**app), "config": ReceivedConfig(table["config"])}
        return super().of({**table, **made})


@dataclass(frozen=True)
class Orders:
    """What the orders of a run's clients have in common; makes the order of each client."""

    url: str
    options: CoreOptions
    config: ReceivedConfig
    data_root: str | None
    threads: int | None
    # The job's seed. Each client gets a seed of its own that follows from it.
    seed: int = 0
    # Each client's namespace and cgroup, by the client's name. Its process enters them first.
    places: Mapping[str, ProcessPlace | None] = field(default_factory=dict)
    # Each client's congestion control, if it differs from the one in the options.
    congestion: Mapping[str, str | None] = field(default_factory=dict)
    app: NamedApp | None = None
    tensors: Sequence[str] | None = None
    # The URLs of clients that do not connect to `url`, by name.
    urls: Mapping[str, str] = field(default_factory=dict)
    shows_training: bool = False
    # The folder in which clients keep their residuals; None without compression.
    residuals: Path | None = None

    def of(self, name: str, number: int) -> ClientOrder:
        """Return the order of client ``name``. ``number`` counts from 1."""
        options: CoreOptions = {**self.options, "seed": self.seed + number}
        if self.residuals is not None:
            options["residual"] = str(self.residuals / f"{name}.residual")
        if name in self.congestion:
            options["transport"] = {**self.options.get("transport", {}), "congestion": self.congestion[name]}
        return ClientOrder(
            name=name,
            threads=self.threads,
            place=self.places.get(name),
            url=self.urls.get(name, self.url),
            options=options,
            config=self.config,
            data_root=self.data_root,
            app=self.app,
            tensors=self.tensors,
            shows_training=self.shows_training,
        )


@contextmanager
def prepared(modules: Sequence[str], threads: int | None) -> Iterator[ForkServers]:
    """Start a fleet's fork server before the fleet exists, so that it and this process import at the same time."""
    server = _fork_server(WORKER, modules, threads)
    server.prepare()
    try:
        yield {threads: server}
    finally:
        server.close()


def _fork_server(program: str, modules: Sequence[str], threads: int | None) -> ForkServer:
    given = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    return ForkServer(program, modules, {**os.environ, **given})


class Fleet(Generic[AnyOrder]):
    """The clients of a run. They are processes, or threads if the transport works only inside one process."""

    def __init__(
        self,
        log: Path,
        on_end: OnEnd,
        *,
        in_process: bool = False,
        work: Work[AnyOrder] | None = None,
        program: str = WORKER,
        modules: Sequence[str] = (),
        on_line: OnLine | None = None,
        on_training: OnTraining | None = None,
        servers: ForkServers | None = None,
    ) -> None:
        """Store the settings; start nothing. ``on_end`` is called for each client that ends early.

        A client's process runs the module ``program``; a client's thread runs ``work``. ``modules`` are those that each
        process would import. With ``on_line`` a process's standard input stays open for ``send``, and ``on_line`` gets
        the lines that it writes while it works. ``on_training`` gets how far a client's training is. ``servers`` are
        the fork servers that ``prepared`` has started.
        """
        self._log = log
        self._on_end = on_end
        self._on_line, self._on_training = on_line, on_training
        self._in_process = in_process
        self._work, self._program, self._modules = work, program, modules
        self._servers: ForkServers = {} if servers is None else servers
        self._starting = threading.Lock()
        self.members: list[Member] = []
        self._ending = False

    def start(self, names: Sequence[str], orders: AnyOrders[AnyOrder]) -> None:
        """Start these clients, after those that were started before."""
        for number, name in enumerate(names, len(self.members) + 1):
            order = orders.of(name, number)
            member = self._thread(name, order) if self._in_process else self._process(name, order)
            self.members.append(member)
            member.thread.start()

    def restart_member(self, name: str, order: AnyOrder) -> None:
        """Start a new process for a client whose process has ended."""
        member = self._process(name, order)
        self.members = [member if one.name == name else one for one in self.members]
        member.thread.start()

    def was_killed(self, name: str) -> bool:
        """Return whether a client's process ended early because a signal killed it."""
        return any(one.name == name and one.failure is not None and one.was_killed for one in self.members)

    def send(self, name: str, message: object) -> None:
        """Send a process a message as a line of JSON. Does nothing if the process has ended."""
        member = next(member for member in self.members if member.name == name)
        if member.process is not None:
            _write(member.process.stdin, message)

    def lost(self) -> dict[str, str]:
        """Return the clients that have ended early, each with the reason."""
        return {member.name: member.failure for member in self.members if member.failure is not None}

    def check(self) -> None:
        """Raise RoundError if a client has ended early, with its own reason. Called before the first round."""
        for member in self.members:
            if member.failure is not None:
                raise self.failed(member)

    def failed(self, member: Member) -> RoundError:
        """Return the error to raise for a client that ended before the first round."""
        failure = (member.report and member.report.error) or Failure(str(member.failure), f"See {self._log}")
        return RoundError(f"{member.name} could not take part: {failure.cause}", failure.hint)

    def peaks(self) -> list[int | None] | None:
        """Return each client's peak memory in bytes, None for a killed one. Return None if clients are threads."""
        if self._in_process:
            return None
        return [None if one.report is None else one.report.peak_rss_bytes for one in self.members]

    def reports(self) -> dict[str, Report]:
        """Return the clients' final reports, by name. Killed clients and threads have none."""
        return {member.name: member.report for member in self.members if member.report}

    def release(self) -> None:
        """Let clients end from now on: it is no failure, and ``on_end`` is not called."""
        self._ending = True

    def end(self, names: Collection[str]) -> None:
        """End these clients' processes, without waiting for that. Called after ``release``."""
        for member in self.members:
            if member.name in names and member.process is not None and member.is_running():
                member.process.terminate()

    def stop(self, *, grace: float = END_SECONDS) -> None:
        """Wait until all clients have ended. After ``grace`` seconds, end the processes that have not. Idempotent.

        After Ctrl-C, processes are ended at once. Threads cannot be ended; those that still run end with this process.
        """
        self.release()
        deadline = time.monotonic() + within(grace, 0.0)
        for member in self.members:
            member.join(max(0.0, deadline - time.monotonic()))
        for end in ("terminate", "kill"):
            late = [member for member in self.members if member.is_running()]
            for member in late:
                getattr(member.process, end)()
            for member in late:
                member.join(within(END_SECONDS))
        for server in self._servers.values():
            server.close()

    def _process(self, name: str, order: AnyOrder) -> Member:
        with self._starting, self._log.open("ab") as log:
            if order.threads not in self._servers:
                self._servers[order.threads] = _fork_server(self._program, self._modules, order.threads)
            server = self._servers[order.threads]
            process = server.start(log)
        # The process reads its order first, so this write ends even if the order is larger than a pipe's buffer.
        _write(process.stdin, replace(order, parent=server.pid or order.parent))
        if self._on_line is None:
            _close(process.stdin)
        member = Member(name, threading.Thread(target=lambda: self._watch(member), daemon=True), process)
        return member

    def _watch(self, member: Member) -> None:
        process = member.process
        if process is None:
            return
        # Processes that an app leaves behind may keep the client's standard output open. Then the loop below would get
        # no end of file, so the sweeper ends these processes.
        sweeper = threading.Thread(target=_sweep, args=(process,), daemon=True)
        sweeper.start()
        with process.stdout as stream:
            for line in stream:
                self._received(member, _parse(line))
        sweeper.join()
        code = process.wait()
        member.was_killed = code < 0
        _close(process.stdin)
        failure = member.report and member.report.error
        self._ended(member, None if code == 0 else failure.cause if failure else _exit_text(code))

    def _received(self, member: Member, line: Line) -> None:
        """Pass a line with ``say`` to ``on_line``. A line without it may be the client's final report."""
        if "say" not in line:
            with suppress(KeyError, TypeError):  # the line is output of the app
                member.report = Report.of(line)
        elif line["say"] == Trained.say:
            with suppress(KeyError, TypeError, ValueError, OverflowError):  # an app may print anything
                self._trained(member.name, Trained.of(line))
        elif self._on_line is not None:
            self._on_line(member.name, line)

    def _trained(self, name: str, done: Trained) -> None:
        if self._on_training is not None:
            self._on_training(name, done.round, done.fraction)

    def _thread(self, name: str, order: AnyOrder) -> Member:
        member = Member(name, threading.Thread(target=lambda: self._take_part(member, order), daemon=True))
        return member

    def _take_part(self, member: Member, order: AnyOrder) -> None:
        failure, work = None, self._work

        def note(text: str) -> None:
            self._note(member.name, text)

        training_progress.show_with(lambda number, fraction: self._trained(member.name, Trained(number, fraction)))
        try:
            if work is not None:
                work(order, note)
        except Exception as error:  # noqa: BLE001 - nothing catches what a thread raises; the run gets the reason
            failure = reason(error)
            self._note(member.name, failure)
        self._ended(member, failure)

    def _ended(self, member: Member, failure: str | None) -> None:
        if not self._ending:
            member.failure = failure or "it ended early"
            self._on_end(member.name, member.failure)

    def _note(self, name: str, text: str) -> None:
        with self._log.open("a") as log:
            line = _core.plain_text(text, 4096)
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime())} {name}: {line}\n")


def take_orders(order: ClientOrder, note: Note) -> None:
    """Take part in the rounds of a job as a client, as its order says. Raises ThalwegError or CoreError."""
    maker = PartyBuilder(
        order.name,
        data_root=order.data_root,
        threads=order.threads,
        app=None if order.app is None else apps.load(order.app.object, order.app.options),
        tensors=order.tensors,
        note=note,
    )
    maker.prepare(order.config)
    client = _core.Client(order.url, order.name, wire.encode(order.options), None)
    with farewell(client, "the client is done"):
        take_part(client, maker, note)


def _sweep(process: ForkedProcess) -> None:
    """Wait until a process has ended, then end the processes of its group that still run."""
    process.wait()
    if process.pid is not None:
        end_group(process.pid)


def client_threads(plan_threads: int | None, clients: int) -> int:
    """Return a client's number of threads: the plan's, or else its part of this machine's cores, at least one."""
    return plan_threads or max(1, machine.cores() // clients)


def _write(stream: IO[bytes] | None, message: object) -> None:
    # Writing fails if the process has ended. The thread that watches it reports why it ended.
    with suppress(OSError, ValueError):
        if stream is not None:
            stream.write(wire.encode(message).encode() + b"\n")
            stream.flush()


def _close(stream: IO[bytes] | None) -> None:
    with suppress(OSError):
        if stream is not None:
            stream.close()


def _parse(line: bytes) -> Line:
    """Return the JSON object in a process's line; an empty one for any other line, such as an app's own output."""
    try:
        value = wire.plain(line) if line.startswith(b"{") else {}
    except ValueError:  # an incomplete line of a killed process, or output of an app that begins like an object
        return {}
    return value if isinstance(value, dict) else {}


def _signal_name(number: int) -> str:
    """Return a signal's name in brackets, or nothing for an unknown one."""
    return f" ({signal.Signals(number).name})" if number in set(signal.Signals) else ""


def _exit_text(code: int) -> str:
    """Return how a process ended, from its exit code: -N if signal N killed it."""
    how = f"killed by signal {-code}{_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    return f"{how}: {guest.MAPPINGS}" if code == -signal.SIGSEGV and guest.is_inside() else how
