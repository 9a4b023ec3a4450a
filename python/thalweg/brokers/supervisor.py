"""The parent process of a broker: ``python -m thalweg.brokers.supervisor``.

1. It reads its ``SupervisorOrder`` as one line of JSON from standard input.
2. It starts the broker in a session of its own, in the namespace and cgroup of ``place``, and prints ``{"started":
   pid}`` or ``{"error": reason}``. The broker writes its log to this process's standard error.
3. It reads requests from standard input, a JSON string on each line. ``"count"`` starts the count of CPU time.
   ``"use"`` is answered with ``{"use": {"cpu_seconds", "peak_rss_bytes"}}``.
4. ``"stop"``, SIGTERM, SIGHUP or the end of standard input (when the parent ends) ends the broker, which gets
   ``grace`` seconds. ``"kill"`` gives it ``HURRIED_SECONDS``.
5. When the broker has ended, it ends all other processes that the broker has started, prints ``{"ended": code,
   "cpu_seconds", "peak_rss_bytes"}``, removes ``folder`` and ends.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

from thalweg import machine, wire
from thalweg.brokers.order import SupervisorOrder
from thalweg.lab import inside
from thalweg.machine.grace import HURRIED_SECONDS

LOOK_SECONDS: Final = 1.0
PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
_TICKS: Final = os.sysconf("SC_CLK_TCK")
# Indices of fields of /proc/PID/stat after the name: the parent's id, and the CPU times of the process and of its
# reaped children, in user space and in the kernel (proc_pid_stat(5)).
_PARENT: Final = 1
_TIMES: Final = slice(11, 15)


class Supervisor:
    """Starts a broker, and measures its CPU time and memory until it ends."""

    def __init__(self, order: SupervisorOrder) -> None:
        """Start the broker. Raises OSError."""
        self._grace = order.grace
        self._counted = 0.0
        self._used = {"cpu_seconds": 0.0, "peak_rss_bytes": 0}
        self._process = subprocess.Popen(
            order.command,
            env=order.environment,
            cwd=order.folder,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            stderr=sys.stderr,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - there is one thread
        )
        self.pid = self._process.pid

    def serve(self) -> int:
        """Answer requests until the broker ends or a request ends it; return its exit code."""
        requests, rest = sys.stdin.fileno(), b""
        watch = os.pidfd_open(self.pid)
        while True:
            ready = select.select([requests, watch], [], [], LOOK_SECONDS)[0]
            if watch in ready:
                return self.end()
            self._measure()
            self._reap()
            if requests not in ready:
                continue
            read = os.read(requests, 4096)
            lines = (rest + read).split(b"\n")
            rest = lines.pop()
            for line in lines:
                self._answer(line)
            if b'"kill"' in lines:
                self._grace = HURRIED_SECONDS
            if not read or b'"stop"' in lines or b'"kill"' in lines:
                return self.end()

    def end(self) -> int:
        """End the broker and all that it started, and return its exit code. Idempotent."""
        _on_request_to_end(signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                self._measure()
                os.killpg(self.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(self._grace)
        self._end_orphans()
        return self._process.wait()

    @property
    def used(self) -> dict[str, float | int]:
        """CPU seconds since ``"count"`` and the peak memory of the broker's processes, when they were last measured."""
        return {**self._used, "cpu_seconds": max(0.0, self._used["cpu_seconds"] - self._counted)}

    def _answer(self, line: bytes) -> None:
        if line == b'"count"':
            self._measure()
            self._counted = self._used["cpu_seconds"]
        elif line == b'"use"':
            self._measure()
            send({"use": self.used})

    def _measure(self) -> None:
        """Measure the broker's processes. Keep the maximum, because the sum falls when one of the processes ends."""
        cpu, peak = 0.0, 0
        for pid in descendants(os.getpid()):
            cpu += cpu_of(pid)
            peak += machine.peak_rss_bytes(pid) or 0
        self._used = {
            "cpu_seconds": max(self._used["cpu_seconds"], cpu),
            "peak_rss_bytes": max(self._used["peak_rss_bytes"], peak),
        }

    def _reap(self) -> None:
        """Reap orphans that have ended: a RabbitMQ node starts epmd every minute, which ends at once."""
        peek = os.WEXITED | os.WNOHANG | os.WNOWAIT
        with suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, peek)) is not None and ended.si_pid != self.pid:
                os.waitpid(ended.si_pid, 0)

    def _end_orphans(self) -> None:
        """End processes that left the broker's session. They became children of this one when their parents ended."""
        deadline = time.monotonic() + self._grace
        while left := [pid for pid in descendants(os.getpid()) if pid != self.pid]:
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if time.monotonic() > deadline:
                return
            select.select([], [], [], 0.01)


def descendants(root: int) -> list[int]:
    """Return the ids of all processes that descend from ``root``, without ``root``."""
    parents: dict[int, int] = {}
    for pid, fields in _stats():
        parents[pid] = int(fields[_PARENT])
    ids, new = [], [root]
    while new:
        new = [pid for pid, parent in parents.items() if parent in new]
        ids += new
    return ids


def cpu_of(pid: int) -> float:
    """Return the CPU time of a process and of its children that have ended, in seconds."""
    fields = _stat(pid)
    return 0.0 if fields is None else sum(int(field) for field in fields[_TIMES]) / _TICKS


def die_with_parent() -> None:
    """Ask the kernel to end this process with its parent: if the supervisor is killed, so is the broker."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def send(message: wire.Table) -> None:
    """Send the run a message, unless the run has ended."""
    with suppress(BrokenPipeError):
        sys.stdout.write(wire.encode(message) + "\n")
        sys.stdout.flush()


def main() -> int:
    """Supervise a broker until it ends. Returns the exit code of this process."""
    # On Ctrl-C the run asks for the broker's end; the signal must not end the broker before that.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = bytearray()
    while not line.endswith(b"\n"):  # unbuffered: a buffer would swallow the requests after this line
        if not (byte := os.read(sys.stdin.fileno(), 1)):
            return 1
        line += byte
    table = wire.plain(bytes(line))
    order = SupervisorOrder(**{**table, "place": inside.ProcessPlace(**table["place"])})
    try:
        _on_request_to_end(lambda *_: sys.exit(1))
        return supervise(order)
    finally:
        shutil.rmtree(order.folder, ignore_errors=True)


def supervise(order: SupervisorOrder) -> int:
    """Start a broker, serve requests until it ends, and end all processes that it started. Returns an exit code."""
    try:
        inside.settle(order.place)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        supervisor = Supervisor(order)
    except OSError as error:
        send({"error": f"{order.command[0]}: {error.strerror or error}"})
        return 1
    try:
        send({"started": supervisor.pid})
        code = supervisor.serve()
    finally:
        supervisor.end()
    send({"ended": code, **supervisor.used})
    return 0


def _on_request_to_end(do: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, do)


def _stats() -> Iterator[tuple[int, list[str]]]:
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and (fields := _stat(int(path.name))) is not None:
            yield int(path.name), fields


def _stat(pid: int) -> list[str] | None:
    text = machine.read_text(Path(f"/proc/{pid}/stat"))
    return None if text is None else text.rpartition(")")[2].split()


if __name__ == "__main__":
    sys.exit(main())
