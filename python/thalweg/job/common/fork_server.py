"""Starts the processes of a run as forks of one process, which has imported what all of them need.

Importing PyTorch takes a process about two seconds of a core. In a run with twenty clients this happens once, and the
clients share the memory of what was imported. ``ForkServer`` is the run's side. The other side is a process that runs
``python -m thalweg.job.common.fork_server PROGRAM MODULE...``. It imports the module ``PROGRAM`` and each ``MODULE``,
and then forks a process for each request. A forked process calls ``run()`` of the module ``PROGRAM``, and ends with the
exit code that it returns.

A request is one byte and four files: standard input, output and error of the new process, and a pipe. The fork server
writes two lines to this pipe: the process's id, and at its end its exit code (-N if signal N killed it). The kernel
kills the fork server when the run ends, and the forked processes when the fork server ends.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Final

from thalweg.machine.grace import within
from thalweg.machine.parent import die_with

# The fork server's own end of the connection to the run: its standard input.
CONNECTION: Final = 0
REQUEST: Final = b"f"
FILES: Final = 4
# The environment variable with the id of the run's process. The fork server ends when that process ends.
PARENT: Final = "THALWEG_FORK_SERVER_PARENT"
# The exit code of a process whose fork server has ended. The kernel kills the process then.
LOST: Final = -signal.SIGKILL
END_SECONDS: Final = 10.0


class ForkedProcess:
    """A process that a fork server has started, with the methods of ``subprocess.Popen`` that a run needs.

    Several threads may wait for it. One of them reads what the fork server writes, and notifies the others.
    """

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes], status: IO[bytes]) -> None:
        """Take over pipes: to its standard input, from its standard output, and ``status`` from its fork server."""
        self.stdin, self.stdout = stdin, stdout
        self.returncode: int | None = None
        self._pid: int | None = None
        self._status = status
        self._received = b""
        self._changed = threading.Condition()
        self._is_being_read = False

    @property
    def pid(self) -> int | None:
        """The process's id. Waits until the fork server has started it; None if that was lost before."""
        self._wait_for(lambda: self._pid is not None or self.returncode is not None, None)
        return self._pid

    def poll(self) -> int | None:
        """Return the exit code if the process has ended; -N if signal N killed it."""
        self._wait_for(lambda: self.returncode is not None, 0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended, and return its exit code. Raises subprocess.TimeoutExpired."""
        self._wait_for(lambda: self.returncode is not None, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self._pid}", timeout or 0.0)
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM. Does nothing if the process has ended."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL. Does nothing if the process has ended."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        pid = self.pid
        # The fork server frees an id after it has reported the end, and the kernel does not reuse an id at once.
        if pid is not None and self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _wait_for(self, condition: Callable[[], bool], timeout: float | None) -> None:
        """Wait until the condition is true, at most ``timeout`` seconds."""
        began, left = time.monotonic(), timeout
        with self._changed:
            while not condition():
                if self._is_being_read:
                    self._changed.wait(left)
                else:
                    self._read(left)
                if timeout is not None and (left := began + timeout - time.monotonic()) <= 0.0:
                    return

    def _read(self, seconds: float | None) -> None:
        """Wait at most ``seconds`` for the fork server's next words. It releases the caller's lock meanwhile."""
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        self._is_being_read = True
        self._changed.release()
        try:
            is_ready = poll.poll(None if seconds is None else 1000.0 * seconds)
        finally:
            self._changed.acquire()
            self._is_being_read = False
            self._changed.notify_all()
        if is_ready:
            self._take(os.read(self._status.fileno(), 64))

    def _take(self, words: bytes) -> None:
        self._received += words
        lines = self._received.split(b"\n")
        if len(lines) > 1:
            self._pid = int(lines[0])
        if len(lines) > 2:
            self.returncode = int(lines[1])
        elif not words:
            self.returncode = LOST
        if self.returncode is not None:
            self._status.close()


class ForkServer:
    """The run's side of a fork server, which is started with the first process."""

    def __init__(self, program: str, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        """``modules`` are imported before the first fork; those that cannot be imported are left out."""
        self._command = [sys.executable, "-m", __name__, program, *modules]
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._was_asked = False

    def prepare(self) -> None:
        """Start the fork server before there is a log, so that it imports while the run prepares itself.

        It writes no errors before its first process, so one that fails is started again by ``start``, and tells then.
        """
        self._connected(subprocess.DEVNULL)

    def start(self, log: IO[bytes]) -> ForkedProcess:
        """Start a process whose standard error is ``log``. Does not wait for it.

        If the fork server is lost, the process counts as killed.
        """
        connection = self._connected(log)
        self._was_asked = True
        stdin, to_stdin = os.pipe()
        from_stdout, stdout = os.pipe()
        from_status, status = os.pipe()
        try:
            with suppress(OSError):  # the fork server is lost, and the process has no status
                socket.send_fds(connection, [REQUEST], [stdin, stdout, log.fileno(), status])
        finally:
            for end in (stdin, stdout, status):
                os.close(end)
        return ForkedProcess(
            os.fdopen(to_stdin, "wb"), os.fdopen(from_stdout, "rb"), os.fdopen(from_status, "rb", buffering=0)
        )

    @property
    def pid(self) -> int | None:
        """The fork server's process id, once it was started."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End the fork server. Its processes have ended, or end now."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            if not self._was_asked:  # it may be importing, and has no processes
                self._process.kill()
            try:
                self._process.wait(within(END_SECONDS))
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _connected(self, log: IO[bytes] | int) -> socket.socket:
        """Return the connection to the fork server; start one if there is none, or if it is lost."""
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._connection is None:
            self._connection, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    env={**self._environment, PARENT: str(os.getpid())},
                    start_new_session=True,
                )
        return self._connection


def main() -> int:
    """Import the modules, fork a process for each request, and end once the run has closed the connection."""
    die_with(int(os.environ.pop(PARENT)))
    program, *modules = sys.argv[1:]
    for name in modules:
        with suppress(ImportError):  # the process that needs it reports the error
            importlib.import_module(name)
    run = importlib.import_module(program).run
    # Objects of the imported modules stay in memory that all processes share.
    gc.collect()
    gc.freeze()
    if not _serve(os.getpid()):
        return 0
    code: int = run()
    return code


def _serve(own: int) -> bool:
    """Fork for each request. Return True in each forked process, and False here once nothing is left to do."""
    # Imported libraries have threads (OpenBLAS) that they end before a fork. Python warns of them nevertheless.
    warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
    poll = select.poll()
    poll.register(CONNECTION, select.POLLIN)
    statuses: dict[int, tuple[int, int]] = {}  # by pidfd: a process's id, and the pipe for its status
    connection: socket.socket | None = socket.socket(fileno=os.dup(CONNECTION))
    while connection is not None or statuses:
        for ready, _ in poll.poll():
            if ready in statuses:
                poll.unregister(ready)
                _report_end(ready, *statuses.pop(ready))
            elif connection is not None:
                request, files, _, _ = socket.recv_fds(connection, len(REQUEST), FILES)
                if request:
                    os.dup2(
                        files[2], sys.stderr.fileno()
                    )  # the log, which may not have existed when this process began
                if not request:
                    poll.unregister(CONNECTION)
                    connection.close()
                    connection = None
                elif not (pid := os.fork()):
                    die_with(own)
                    _become(files, [connection.detach(), *statuses, *(end for _, end in statuses.values())])
                    return True
                else:
                    *streams, status = files
                    for stream in streams:
                        os.close(stream)
                    pidfd = os.pidfd_open(pid)
                    statuses[pidfd] = pid, status
                    poll.register(pidfd, select.POLLIN)
                    _write(status, pid)
    return False


def _report_end(pidfd: int, pid: int, status: int) -> None:
    # The kernel does not reuse the id before waitpid, so a late signal of the run does not reach another process.
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if ended is not None:
        _write(status, ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)
    os.waitpid(pid, 0)
    os.close(status)
    os.close(pidfd)


def _write(status: int, number: int) -> None:
    with suppress(OSError):  # the run does not wait for this process any more
        os.write(status, f"{number}\n".encode())


def _become(files: Sequence[int], others: Sequence[int]) -> None:
    """Make this forked process one of its own: session, standard streams, and random numbers."""
    os.setsid()
    stdin, stdout, stderr, status = files
    for number, file in enumerate((stdin, stdout, stderr)):
        os.dup2(file, number)
    for file in (stdin, stdout, stderr, status, *others):
        os.close(file)
    # Python seeds `random` anew after a fork, but not NumPy's generator: all clients would draw the same numbers.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


if __name__ == "__main__":
    sys.exit(main())
