"""Runs a worker process from its start to its end, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from thalweg import wire
from thalweg.bench.systems import System
from thalweg.machine.grace import within
from thalweg.ui.units import format_seconds

# Seconds for a worker to end after SIGTERM: it closes its links, its lab and its record.
END_SECONDS: Final = 30.0
# The same, after a signal has reached this program. It is short: if the worker is killed, its programs end with it, and
# its run is repeated in any case.
HURRIED_SECONDS: Final = 1.5
COMMAND: Final = (sys.executable, "-m", "thalweg.bench.worker")


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker reads from standard input: the path of its plan, and the process that must not end before it.

    ``system`` is the table of another system (``thalweg.bench.systems``), None for thalweg.
    """

    plan: str
    parent: int
    system: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run failed, and what to do about it."""

    cause: str
    hint: str


@dataclass(frozen=True, slots=True)
class _Printed:
    """The part of a worker's output that this module reads."""

    error: Failure | None = None


def execute(plan: Path, log: Path, limit: float | None, system: System | None = None) -> Failure | None:
    """Run a plan, by thalweg or another system. Return why it failed, or None if it came to its end.

    The worker's stderr goes to ``log``. After ``limit`` seconds the worker is ended. Raises KeyboardInterrupt, after
    the worker has ended.
    """
    with log.open("wb") as stream:
        process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream, start_new_session=True
        )
    order = wire.encode(Order(str(plan), os.getpid(), None if system is None else system.model_dump())).encode()
    try:
        printed, _ = process.communicate(order, timeout=limit)
    except subprocess.TimeoutExpired:
        return Failure(f"it took longer than {format_seconds(limit or 0.0)}", "Give it a higher limit")
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


def _result(printed: bytes, code: int, log: Path) -> Failure | None:
    lines = printed.splitlines()
    try:
        result = wire.decode(_Printed, lines[-1]) if lines else None
    except ValueError:
        result = None
    if result is not None and (code == 0 or result.error is not None):
        return result.error
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return Failure(f"its process {how}", f"See {log}")
