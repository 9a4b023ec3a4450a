"""Programs as users start them: processes with pipes, watched line by line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

TIMEOUT = 120.0


def why_no_lab() -> str:
    """Return why there can be no emulated network here; nothing if there can."""
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
        """Return exit code, standard output and all of standard error."""
        out, err = self.process.communicate(timeout=TIMEOUT)
        return self.process.returncode, out, "".join(self.seen) + err

    def children(self, module: str = "thalweg.job.worker") -> list[int]:
        """Return the ids of its processes that run this module, by default clients, in the order they were started."""
        numbers = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
        return sorted(pid for pid in numbers if self._is_child(pid, module.encode()))

    def _is_child(self, pid: int, module: bytes) -> bool:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False  # it has ended meanwhile
        return int(fields[1]) == self.process.pid and module in command


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
