"""A node's keeper on the machine where Ray has put it: the only code that runs inside of Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from typing import IO, Any, Final

from thalweg.job.engines import PROGRAM

# Bytes of a node's log that it leaves when it ends.
TAIL: Final = 4096


class NodeActor:
    """Runs one node in a process of its own, with which it lives and dies.

    The process ends with this one (``thalweg.machine.parent``). This one ends if the process is killed, so that Ray
    starts both again. Nothing that clients or nodes send each other passes through here.
    """

    def __init__(self, order: str, release: str) -> None:
        """``order`` is that of ``thalweg.job.gateway`` as JSON, ``release`` that of the run's thalweg."""
        self._order, self._release = json.loads(order), release

    def serve(self) -> str:
        """Run the node until its job is over; return its last words as JSON, with the end of its log as ``log``."""
        here = version("thalweg")
        if here != self._release:
            cause = f"its machine has thalweg {here}, and the run {self._release}"
            return json.dumps({"error": {"cause": cause, "mend": "Install the same release on all machines"}})
        order = json.dumps({**self._order, "parent": os.getpid()}).encode() + b"\n"
        with tempfile.TemporaryFile() as log:
            command, pipe = [sys.executable, "-m", PROGRAM], subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log)
            said, _ = process.communicate(order)
            if process.returncode < 0:
                os._exit(1)  # what Ray takes for a crash
            report = _last(said) or {"error": _early(process.returncode)}
            return json.dumps({**report, "log": _tail(log)})


def _last(said: bytes) -> dict[str, Any]:
    """Return the last words of a process: a line of JSON."""
    lines = [line for line in said.splitlines() if line.startswith(b"{")]
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return found


def _tail(log: IO[bytes]) -> str:
    """Return the last whole lines of a log."""
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - TAIL))
    found = log.read().decode(errors="replace")
    return found if size <= TAIL else found.partition("\n")[2]


def _early(code: int) -> dict[str, str]:
    return {"cause": f"it ended with exit code {code}", "mend": "See the record's log.txt for what it said"}
