"""The client side of a lab: starts a supervisor process, and sends it requests over its Unix socket."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from thalweg import wire
from thalweg.errors import LabError, PlanError
from thalweg.lab import namespaces, reaper
from thalweg.lab import state as states
from thalweg.lab.status import Notice, Status
from thalweg.lab.values import Answer, Failure, Host, Order
from thalweg.machine.grace import within
from thalweg.network.shape import Shape
from thalweg.record.rows import Queue

READY_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 30.0
END_SECONDS: Final = 15.0


class RunningLab:
    """A running lab. ``hosts`` has namespace, ipv4, ipv6 and device of each host, by name."""

    def __init__(self, state: states.State, process: subprocess.Popen[bytes] | None = None) -> None:
        """Take control of a lab. ``process``: the supervisor of an attached lab, which ends with this process."""
        self.state = state
        self.name = state.name
        self.hosts = state.hosts
        self.failure: str | None = None
        self.last: Status | None = None
        self._process = process
        self._ending = False
        self._on_failure: Callable[[str], None] = lambda _: None
        self._watcher: threading.Thread | None = None
        if process is not None:
            self._watcher = threading.Thread(target=self._watch, daemon=True)
            self._watcher.start()

    @property
    def hosts_file(self) -> str:
        """The path of the file that programs inside have as /etc/hosts."""
        return str(self.state.folder / states.HOSTS)

    def host(self, name: str) -> Host:
        """Return a host by name, as client-1 or client1. Raises LabError."""
        return self.state.host(name)

    def on_failure(self, notify: Callable[[str], None]) -> None:
        """Call ``notify`` with the reason if the lab fails, in the thread that watches the supervisor."""
        self._on_failure = notify

    def start(self) -> float:
        """Start the clock of the lab's changes and samples; return its start on the monotonic clock, in seconds."""
        return float(self._ask({"do": "start"}))

    def status(self) -> Status:
        """Return the core's counters and states of links and hosts. Raises LabError."""
        return wire.made(Status, self._ask({"do": "status"}))

    def samples(self) -> list[Queue]:
        """Return the samples of queues since the last call. Raises LabError."""
        return wire.made(list[Queue], self._ask({"do": "samples"}))

    def set(self, link: str, direction: str | None, shape: Shape) -> None:
        """Give a link, or one direction of it (ab or ba), a new shape. Raises LabError."""
        self._ask({"do": "set", "link": link, "direction": direction, "shape": shape})

    def down(self) -> None:
        """Take the lab down and wait until its processes and its folder are gone. Idempotent, also for a failed lab."""
        if self._ending:
            return
        self._ending = True
        # The supervisor gives programs inside `grace` seconds to end, and answers when all have ended.
        grace = within(namespaces.GRACE_SECONDS)
        with suppress(LabError):
            last = self._ask({"do": "down", "grace": grace}, within(ANSWER_SECONDS, 3 * grace))
            self.last = None if last is None else wire.made(Status, last)
        if self._process is not None:
            self._end_process(self._process)
        else:
            self._await_exit(within(END_SECONDS))

    def check(self) -> None:
        """Raise LabError if the lab has failed."""
        if self.failure is not None:
            raise LabError(self.failure, "Start again; if it happens again, see the supervisor's messages in the log")

    def _await_exit(self, seconds: float) -> None:
        """Wait at most ``seconds`` for the end of a supervisor that another process started. It answers before that."""
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.state.pid)
            try:
                if states.is_alive(self.state.pid, self.state.started):
                    poll = select.poll()
                    poll.register(descriptor, select.POLLIN)
                    poll.poll(seconds * 1000)
            finally:
                os.close(descriptor)

    def _end_process(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        for end in (process.terminate, process.kill):
            try:
                process.wait(within(END_SECONDS))
                break
            except subprocess.TimeoutExpired:
                end()
        process.wait()
        if self._watcher is not None:
            self._watcher.join(END_SECONDS)
        if states.is_alive(self.state.pid, self.state.started) or self.state.folder.exists():
            reaper.reap()

    def _watch(self) -> None:
        process = self._process
        if process is None or process.stdout is None:
            return
        with process.stdout as stream:
            for line in stream:
                self._handle(wire.decode(Notice, line))
        code = process.wait()
        if not self._ending:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            self._fail(f"the supervisor of the lab {how}")

    def _handle(self, notice: Notice) -> None:
        if notice.failed is not None:
            self._fail(f"the relay of the lab failed: {notice.failed}")
        if notice.status is not None:
            self.last = notice.status

    def _fail(self, why: str) -> None:
        if self.failure is None:
            self.failure = why
            self._on_failure(why)

    def _ask(self, request: Mapping[str, object], seconds: float = ANSWER_SECONDS) -> Any:
        try:
            answer = exchange(self.state, request, seconds)
        except (OSError, ValueError) as error:
            raise LabError(
                self.failure or f"the lab {self.name} does not answer: {error}",
                "It may have ended: thalweg lab status",
            ) from error
        if answer.error is not None:
            raise error_of(answer.error)
        return answer.ok


def statuses(labs: Iterable[RunningLab]) -> list[tuple[RunningLab, Status]]:
    """Return labs with their statuses, without those that end meanwhile.

    Raises LabError if a lab does not answer and does not end either.
    """
    answers = [(lab, _status(lab)) for lab in labs]
    return [(lab, status) for lab, status in answers if status is not None]


def _status(lab: RunningLab) -> Status | None:
    try:
        return lab.status()
    except LabError:
        # A supervisor that is ending answers no more requests.
        if not states.has_ended(lab.state, END_SECONDS):
            raise
        return None


def exchange(state: states.State, request: Mapping[str, object], seconds: float = ANSWER_SECONDS) -> Answer:
    """Send a lab's supervisor a request and return its answer. Raises OSError after ``seconds``, ValueError."""
    with connect(state, seconds) as caller, caller.makefile("rwb") as lines:
        lines.write(wire.encode(request).encode() + b"\n")
        lines.flush()
        return wire.decode(Answer, lines.readline())


def connect(state: states.State, seconds: float = ANSWER_SECONDS) -> socket.socket:
    """Return a connection to a lab's supervisor, with a timeout of ``seconds`` for each operation. Raises OSError."""
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    caller.settimeout(seconds)
    try:
        folder = os.open(state.folder, os.O_PATH | os.O_DIRECTORY)
        try:
            caller.connect(f"/proc/self/fd/{folder}/{states.SOCKET}")
        finally:
            os.close(folder)
    except OSError:
        caller.close()
        raise
    return caller


def start(
    spec: str,
    name: str,
    *,
    unique: bool = True,
    attached: bool = True,
    cgroups: Sequence[str] = (),
    log: int | None = None,
) -> RunningLab:
    """Start a lab and wait until it is ready. With ``unique`` a number is added to a name that is in use.

    An attached lab ends with this process, any other with ``down``. ``log`` is a descriptor for the supervisor's
    standard error. Raises LabError; PlanError for a spec that the core refuses.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "thalweg.lab.supervisor"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
    )
    order = Order(spec, name, unique, attached, tuple(cgroups))
    try:
        answer = _order(process, order)
        if answer.error is not None:
            raise error_of(answer.error)
        if answer.ready is None:
            raise LabError("the supervisor of the lab gave no name", "Use the same version on both sides")
        state = states.find(answer.ready.name)
    except BaseException:
        process.kill()
        _close(process)
        process.wait()
        reaper.reap()
        raise
    if attached:
        return RunningLab(state, process)
    _close(process)
    # The supervisor outlives this process. Setting a return code prevents Popen's warning that a child still runs.
    process.returncode = 0
    return RunningLab(state)


def error_of(error: Failure) -> LabError | PlanError:
    """Return the exception for the error in a supervisor's answer."""
    return (
        PlanError(error.cause, error.hint) if error.kind == "config" else LabError(error.cause, error.hint, error.kind)
    )


def _order(process: subprocess.Popen[bytes], order: Order) -> Answer:
    if process.stdin is None or process.stdout is None:
        raise LabError("the supervisor has no pipes", "Start again")
    died = LabError("the supervisor of the lab ended before the lab was ready", "See its messages above, or in the log")
    try:
        process.stdin.write(wire.encode(order).encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError as error:
        raise died from error
    if not select.select([process.stdout], [], [], READY_SECONDS)[0]:
        raise LabError(f"the lab was not ready after {READY_SECONDS:.0f} s", "Try again, or with fewer clients")
    line = process.stdout.readline()
    if not line:
        raise died
    return wire.decode(Answer, line)


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
