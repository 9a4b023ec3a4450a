"""The Ray actor that runs one node on the machine that Ray chose. No other code of thalweg runs inside Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from typing import IO, Any, Final

from thalweg.job.tree.engines import PROGRAM

# Bytes from the end of a node's log that the actor returns.
TAIL: Final = 4096


class NodeActor:
    """Runs one node in a child process.

    The child ends when the actor's process ends (``thalweg.machine.parent``). If a signal kills the child, the actor
    exits too, so that Ray restarts both. Models and updates do not pass through the actor.
    """

    def __init__(self, order: str, release: str) -> None:
        """``order`` is the JSON order of ``thalweg.job.tree.node``, ``release`` the run's version of thalweg."""
        self._order, self._release = json.loads(order), release

    def serve(self) -> str:
        """Run the node until its job is over; return its final report as JSON, with the end of its log as ``log``."""
        here = version("thalweg")
        if here != self._release:
            cause = f"its machine has thalweg {here}, and the run {self._release}"
            return json.dumps({"error": {"cause": cause, "hint": "Install the same release on all machines"}})
        order = json.dumps({**self._order, "parent": os.getpid()}).encode() + b"\n"
        with tempfile.TemporaryFile() as log:
            command, pipe = [sys.executable, "-m", PROGRAM], subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log)
            said, _ = process.communicate(order)
            if process.returncode < 0:
                os._exit(1)  # Ray sees a crash, and restarts the actor
            report = _last(said) or {"error": _early(process.returncode)}
            return json.dumps({**report, "log": _tail(log)})


def _last(said: bytes) -> dict[str, Any]:
    """Return a process's final report: its last line of JSON; empty if there is none."""
    lines = [line for line in said.splitlines() if line.startswith(b"{")]
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return found


def _tail(log: IO[bytes]) -> str:
    """Return the last whole lines of a log, at most ``TAIL`` bytes."""
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - TAIL))
    found = log.read().decode(errors="replace")
    return found if size <= TAIL else found.partition("\n")[2]


def _early(code: int) -> dict[str, str]:
    return {"cause": f"it ended with exit code {code}", "hint": "See the record's log.txt for what it said"}
