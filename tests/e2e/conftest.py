"""Starts programs as users do, with pipes, and reads their output line by line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

# Seconds after which a hanging test fails. Enough also if many programs share few cores.
TIMEOUT = 600.0


def why_no_lab() -> str:
    """Return why this machine cannot emulate networks; empty if it can."""
    if os.geteuid() != 0:
        return "emulated networks need root"
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        return f"emulated networks need /dev/net/tun: {error.strerror}"
    return ""


class Program:
    """``thalweg ...`` in a process of its own."""

    def __init__(self, arguments: list[str], folder: Path, through: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*through, sys.executable, "-m", "thalweg", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.folder = folder
        self.seen: list[str] = []

    def until(self, words: str) -> str:
        """Return the next line on standard error that has ``words`` in it."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.seen.append(line)
            if words in line:
                return line
        raise AssertionError(f"{words!r} did not come; it said: {''.join(self.seen)}")

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return exit code, standard output and all of standard error."""
        out, err = self.process.communicate(timeout=TIMEOUT)
        return self.process.returncode, out, "".join(self.seen) + err

    def children(self, module: str = "thalweg.job.star.worker") -> list[int]:
        """Return the ids of its processes that run this module, by default clients, in the order they were started.

        They are children of a process that forks them, which is a child of the program.
        """
        running = [number for path in Path("/proc").iterdir() if path.name.isdecimal() and (number := int(path.name))]
        servers = [pid for pid in running if self._is_running(pid, self.process.pid, module) is not None]
        begun = {
            pid: at
            for pid in running
            for server in servers
            if (at := self._is_running(pid, server, module)) is not None
        }
        # Sort by the start time. Ids start again from the lowest one, so a younger process may have a lower id.
        return sorted(begun, key=lambda pid: (begun[pid], pid))

    @staticmethod
    def _is_running(pid: int, parent: int, module: str) -> int | None:
        """Return when a process began, in ticks since boot; None if it has another parent, or runs another module."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return None  # it has ended meanwhile
        return int(fields[19]) if int(fields[1]) == parent and module.encode() in command else None


Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start programs; those that still run at the end are ended."""
    programs: list[Program] = []

    def begin(*arguments: str, through: Sequence[str] = ()) -> Program:
        programs.append(Program([str(argument) for argument in arguments], tmp_path, through))
        return programs[-1]

    yield begin
    for program in programs:
        if program.process.poll() is None:
            program.process.kill()
        program.process.communicate()


@pytest.fixture
def result(start: Start) -> Callable[..., Any]:
    """Run a command with ``--json`` to its end and return what it printed."""

    def run(*arguments: str) -> Any:
        code, out, err = start(*arguments, "--json").end()
        assert code == 0, err
        return json.loads(out)

    return run
