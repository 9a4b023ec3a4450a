"""Starts a run's processes as forks of one process, the fork server, which has imported the modules that all need.

Importing PyTorch takes a process about two seconds of a core. With a fork server this happens once for all clients, and
they share the memory of the imported modules. ``ForkServer`` is the run's side. The fork server itself is the process
``python -m thalweg.job.common.fork_server PROGRAM MODULE...``. It imports the module ``PROGRAM`` and each ``MODULE``,
and then forks a process for each request. A forked process calls ``run()`` of the module ``PROGRAM``, and ends with the
exit code that ``run()`` returns.

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

# The fork server's end of the connection to the run: the descriptor of its standard input.
CONNECTION: Final = 0
REQUEST: Final = b"f"
FILES: Final = 4
# The environment variable that has the id of the run's process, with which the fork server ends.
PARENT: Final = "THALWEG_FORK_SERVER_PARENT"
# The exit code of a process whose fork server has ended: the kernel then kills the process.
LOST: Final = -signal.SIGKILL
END_SECONDS: Final = 10.0


class ForkedProcess:
    """A process that a fork server has started, with the methods of ``subprocess.Popen`` that a run needs.

    Several threads may wait for it. One of them reads what the fork server writes, and notifies the others.
    """

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes], status: IO[bytes]) -> None:
        """Take over pipes: to its standard input, from its standard output, and ``status`` from the fork server."""
        self.stdin, self.stdout = stdin, stdout
        self.returncode: int | None = None
        self._pid: int | None = None
        self._status = status
        self._received = b""
        self._changed = threading.Condition()
        self._is_being_read = False

    @property
    def pid(self) -> int | None:
        """The process's id. Waits until the fork server has started it; None if the fork server was lost before."""
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
        """Wait at most ``seconds`` for the fork server's next bytes. Releases the caller's lock while it waits."""
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
    """The run's side of a fork server. The fork server starts with the first process, or by ``prepare``."""

    def __init__(self, program: str, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        """Store the settings. ``modules`` are imported before the first fork, except those that cannot be imported."""
        self._command = [sys.executable, "-m", __name__, program, *modules]
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        # Whether a process was requested. Until then the fork server has no children, and may still be importing.
        self._was_asked = False

    def prepare(self) -> None:
        """Start the fork server before there is a log, so that it imports while the run prepares itself.

        Its errors are lost until ``start``. If it has failed by then, ``start`` starts it again, with the log.
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
            with suppress(OSError):  # the fork server is lost: the process will count as killed
                socket.send_fds(connection, [REQUEST], [stdin, stdout, log.fileno(), status])
        finally:
            for end in (stdin, stdout, status):
                os.close(end)
        return ForkedProcess(
            os.fdopen(to_stdin, "wb"), os.fdopen(from_stdout, "rb"), os.fdopen(from_status, "rb", buffering=0)
        )

    @property
    def pid(self) -> int | None:
        """The fork server's process id; None before it was started."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End the fork server. Forked processes that are still running end with it."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            if not self._was_asked:
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
        with suppress(ImportError):  # the process that needs the module reports the error
            importlib.import_module(name)
    run = importlib.import_module(program).run
    # Without this, the garbage collector would write to objects of the modules, and each process would copy them.
    gc.collect()
    gc.freeze()
    if not _serve(os.getpid()):
        return 0
    code: int = run()
    return code


def _serve(own: int) -> bool:
    """Fork for each request. Return True in each forked process, and False in this one when nothing is left to do."""
    # Python warns of threads at a fork. Those of OpenBLAS are harmless: it ends them before the fork.
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
    # Report before waitpid: the kernel does not reuse the id before, so a late signal cannot reach another process.
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if ended is not None:
        _write(status, ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)
    os.waitpid(pid, 0)
    os.close(status)
    os.close(pidfd)


def _write(status: int, number: int) -> None:
    with suppress(OSError):  # the run no longer waits for this process
        os.write(status, f"{number}\n".encode())


def _become(files: Sequence[int], others: Sequence[int]) -> None:
    """Give this forked process a session, standard streams and random numbers of its own."""
    os.setsid()
    stdin, stdout, stderr, status = files
    for number, file in enumerate((stdin, stdout, stderr)):
        os.dup2(file, number)
    for file in (stdin, stdout, stderr, status, *others):
        os.close(file)
    # After a fork Python seeds `random` anew, but not NumPy's generator: all clients would draw the same numbers.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


if __name__ == "__main__":
    sys.exit(main())
