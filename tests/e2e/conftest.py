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
        """Return the ids of its processes that run ``module`` (by default clients), in the order of their start."""
        numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
        begun = {pid: at for pid in numbers if (at := self._child_since(pid, module.encode())) is not None}
        # Sort by start time and not by id: after the highest id the kernel starts again with low ones.
        return sorted(begun, key=lambda pid: (begun[pid], pid))

    def _child_since(self, pid: int, module: bytes) -> int | None:
        """Return when a process began, in clock ticks since boot; None if it is not such a process."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return None  # it has ended meanwhile
        return int(fields[19]) if int(fields[1]) == self.process.pid and module in command else None


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
