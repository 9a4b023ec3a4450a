"""Runs a worker process from its start to its end, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from thalweg.machine.grace import within
from thalweg.ui.units import format_seconds

# Seconds for a worker to end after SIGTERM: it closes its links, its lab and its record.
END_SECONDS: Final = 30.0
# The same after this program got a signal. A worker that is killed takes its own programs with it, and its run is run
# again in any case.
HURRIED_SECONDS: Final = 1.5
COMMAND: Final = (sys.executable, "-m", "thalweg.bench.worker")


def execute(plan: Path, log: Path, limit: float | None) -> dict[str, Any]:
    """Run a plan and return its result, or ``{"error": {"cause", "hint"}}``. The worker's stderr goes to ``log``.

    After ``limit`` seconds the worker is ended. Raises KeyboardInterrupt, after the worker has ended.
    """
    with log.open("wb") as stream:
        process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream, start_new_session=True
        )
    order = json.dumps({"plan": str(plan), "parent": os.getpid()}).encode()
    try:
        printed, _ = process.communicate(order, timeout=limit)
    except subprocess.TimeoutExpired:
        return _error(f"it took longer than {format_seconds(limit or 0.0)}", "Give it a higher limit")
    finally:
        _end(process)
    return _result(printed, process.returncode, log)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        # Not SIGINT: the worker may have got one already, and a second one would interrupt its cleanup.
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=within(END_SECONDS, HURRIED_SECONDS))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _result(printed: bytes, code: int, log: Path) -> dict[str, Any]:
    lines = printed.splitlines()
    try:
        said = json.loads(lines[-1]) if lines else None
    except ValueError:
        said = None
    if isinstance(said, dict) and (code == 0 or "error" in said):
        return said
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return _error(f"its process {how}", f"See {log}")


def _error(cause: str, hint: str) -> dict[str, Any]:
    return {"error": {"cause": cause, "hint": hint}}
