"""Forked processes end, are killed and report as processes that were started in the usual way."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from thalweg.job.common.fork_server import LOST, ForkedProcess, ForkServer

# Reads lines such as {"print": ...} until one has an exit code.
PROGRAM = """
import json, os, random, signal, subprocess, sys
import numpy as np

IMPORTED = os.getpid()

def run():
    for line in sys.stdin:
        order = json.loads(line)
        if "code" in order:
            return order["code"]
        if order["show"] == "raise":
            raise RuntimeError("as asked")
        shown = {
            "ids": lambda: [os.getpid(), os.getppid(), os.getsid(0), IMPORTED],
            "random": lambda: [np.random.random(), random.random()],
            "threads": lambda: os.environ.get("OMP_NUM_THREADS"),
            "files": lambda: sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
            "child": lambda: subprocess.run(["true"]).returncode,
        }[order["show"]]()
        print(json.dumps(shown), flush=True)
    return 7
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[IO[bytes]]:
    with (tmp_path / "log.txt").open("ab") as stream:
        yield stream


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    (tmp_path / "forked_program.py").write_text(PROGRAM)
    folder = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    server = ForkServer("forked_program", ["no_such_module"], {**os.environ, "PYTHONPATH": folder})
    yield server
    server.close()


def ask(process: ForkedProcess, show: str) -> object:
    order(process, {"show": show})
    return json.loads(process.stdout.readline())


def order(process: ForkedProcess, message: object) -> None:
    process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()


def close(*processes: ForkedProcess) -> None:
    """End processes by the end of their input."""
    for process in processes:
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(60)
        process.stdout.close()


def test_a_server_that_is_started_early_forks_the_processes_and_takes_their_log(
    server: ForkServer, log: IO[bytes]
) -> None:
    server.prepare()
    early = server.pid
    process = server.start(log)
    assert early == server.pid
    ids = ask(process, "ids")
    assert isinstance(ids, list)
    assert ids[1] == early
    assert Path(f"/proc/{early}/fd/2").readlink() == Path(log.name)
    close(process)


def test_a_server_that_is_not_needed_ends_at_once(server: ForkServer) -> None:
    server.prepare()
    early = server.pid
    assert early is not None
    server.close()
    with pytest.raises(ProcessLookupError):
        os.kill(early, 0)


def test_a_process_ends_with_the_exit_code_of_its_program(server: ForkServer, log: IO[bytes]) -> None:
    processes = [server.start(log) for _ in range(3)]
    assert [process.poll() for process in processes] == [None] * 3
    for code, process in enumerate(processes):
        order(process, {"code": code})
    assert [process.wait(60) for process in processes] == [0, 1, 2]
    assert [process.poll() for process in processes] == [0, 1, 2]
    for process in processes:
        process.terminate()  # does nothing
    close(*processes)


def test_its_standard_streams_are_its_own(server: ForkServer, log: IO[bytes], tmp_path: Path) -> None:
    one, other = server.start(log), server.start(log)
    assert ask(one, "files") == ask(other, "files") == [0, 1, 2], "no other process's file stays open in it"
    assert ask(one, "child") == 0
    one.stdin.close()
    assert one.wait(60) == 7, "its standard input is at its end"
    order(other, {"show": "raise"})
    assert other.wait(60) == 1
    assert "RuntimeError: as asked" in (tmp_path / "log.txt").read_text()
    close(one, other)


def test_what_it_imports_is_imported_once(server: ForkServer, log: IO[bytes]) -> None:
    processes = [server.start(log), server.start(log)]
    for process in processes:
        assert ask(process, "ids") == [process.pid, server.pid, process.pid, server.pid]
    close(*processes)
    assert [process.returncode for process in processes] == [7, 7]


def test_each_process_draws_random_numbers_of_its_own(server: ForkServer, log: IO[bytes]) -> None:
    processes = [server.start(log) for _ in range(3)]
    drawn = [ask(process, "random") for process in processes]
    assert len({json.dumps(numbers) for numbers in drawn}) == 3
    assert len({numbers[0] for numbers in drawn if isinstance(numbers, list)}) == 3, "NumPy's, too"
    close(*processes)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_a_signal_ends_says_which(server: ForkServer, log: IO[bytes], number: signal.Signals) -> None:
    process = server.start(log)
    (process.terminate if number == signal.SIGTERM else process.kill)()
    assert process.wait(60) == -number
    close(process)


def test_a_wait_may_be_over_before_the_process(server: ForkServer, log: IO[bytes]) -> None:
    process = server.start(log)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    close(process)


def test_many_threads_may_wait_for_it_at_once(server: ForkServer, log: IO[bytes]) -> None:
    for code in range(50):
        process = server.start(log)
        with ThreadPoolExecutor(3) as threads:
            codes = [threads.submit(process.wait), threads.submit(process.wait)]
            pid = threads.submit(lambda process=process: process.pid)  # type: ignore[misc]
            order(process, {"code": code})
            assert [one.result() for one in codes] == [code] * 2
            assert pid.result() == process.pid is not None
        close(process)


def test_processes_do_not_outlive_the_fork_server(server: ForkServer, log: IO[bytes]) -> None:
    first = server.start(log)
    pid = first.pid
    assert pid is not None
    assert server.pid is not None
    watches = [os.pidfd_open(pid), os.pidfd_open(server.pid)]
    os.kill(server.pid, signal.SIGKILL)
    assert first.wait(60) == LOST
    for watch in watches:
        assert select.select([watch], [], [], 60)[0], "the process goes on"
        os.close(watch)
    second = server.start(log)
    assert ask(second, "threads") is None, "another fork server was started"
    close(first, second)


def test_a_program_that_cannot_be_imported_ends_all(log: IO[bytes], tmp_path: Path) -> None:
    server = ForkServer("no_such_program", [], os.environ)
    process = server.start(log)
    assert process.wait(60) == LOST
    assert process.pid is None
    process.kill()  # does nothing
    assert "No module named 'no_such_program'" in (tmp_path / "log.txt").read_text()
    close(process)
    server.close()
