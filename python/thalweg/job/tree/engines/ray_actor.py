"""The Ray actor that runs one node on the machine that Ray chose. No other code of thalweg runs inside Ray."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from importlib.metadata import version
from typing import IO, Final

from thalweg import wire
from thalweg.job.common.messages import Failure, Report
from thalweg.job.tree.engines import PROGRAM
from thalweg.job.tree.order import NodeOrder

# Bytes from the end of a node's log that the actor returns.
TAIL: Final = 4096


class NodeActor:
    """Runs one node in a child process.

    The child ends when the actor's process ends (``thalweg.machine.parent``). If a signal kills the child, the actor
    exits too, so that Ray restarts both. Models and updates do not pass through the actor.
    """

    def __init__(self, order: str, release: str) -> None:
        """``order`` is a ``NodeOrder`` as JSON, ``release`` the run's version of thalweg."""
        self._order, self._release = NodeOrder.of(wire.plain(order)), release

    def serve(self) -> str:
        """Run the node until its job is over; return its ``Report`` as JSON, with the end of its log."""
        here = version("thalweg")
        if here != self._release:
            cause = f"its machine has thalweg {here}, and the run {self._release}"
            return wire.encode(Report(error=Failure(cause, "Install the same release on all machines")))
        order = wire.encode(replace(self._order, parent=os.getpid())).encode() + b"\n"
        with tempfile.TemporaryFile() as log:
            command, pipe = [sys.executable, "-m", PROGRAM], subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log)
            output, _ = process.communicate(order)
            if process.returncode < 0:
                os._exit(1)  # Ray sees a crash, and restarts the actor
            report = _last(output) or Report(error=_early(process.returncode))
            return wire.encode(replace(report, log=_tail(log)))


def _last(output: bytes) -> Report | None:
    """Return a process's final report: its last line of JSON, if there is one."""
    lines = [line for line in output.splitlines() if line.startswith(b"{")]
    return Report.of(wire.plain(lines[-1])) if lines else None


def _tail(log: IO[bytes]) -> str:
    """Return the last whole lines of a log, at most ``TAIL`` bytes."""
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - TAIL))
    tail = log.read().decode(errors="replace")
    return tail if size <= TAIL else tail.partition("\n")[2]


def _early(code: int) -> Failure:
    return Failure(f"it ended with exit code {code}", "See the record's log.txt for what it printed")
