"""The load of other programs during a run: the number of cores that they used on average.

It is the busy time of all cores from ``/proc/stat``, minus the CPU time of the run's own processes. If a process of the
run outlives it, the result is too large.
"""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from statistics import fmean
from typing import Final

from thalweg.bench.driver import Execute
from thalweg.bench.process import Failure, execute
from thalweg.bench.systems import System

SUFFIX: Final = ".load.json"
STAT: Final = Path("/proc/stat")
# Columns of the first line of ``/proc/stat`` (proc_stat(5)). Programs used the time in all columns except idle and
# iowait.
IDLE: Final = (3, 4)
# user, nice, system, idle, iowait, irq, softirq and steal. user includes guests.
COLUMNS: Final = 8


def measured(inner: Execute = execute) -> Execute:
    """Return a runner of plans: it calls ``inner`` and writes other programs' load to ``NAME.load.json`` beside it."""

    def run(plan: Path, log: Path, limit: float | None, system: System | None) -> Failure | None:
        began, busy, own = time.monotonic(), _busy(), _own()
        failure = inner(plan, log, limit, system)
        seconds, busy, own = time.monotonic() - began, _busy() - busy, _own() - own
        cores = {"others": max(0.0, busy - own) / seconds, "own": own / seconds, "cores": os.cpu_count()}
        log.with_name(log.stem + SUFFIX).write_text(json.dumps(cores))
        return failure

    return run


def of_folder(cells: Path) -> dict[str, float] | None:
    """Return the number of cores that other programs used during a folder's runs: the mean and the maximum of a run."""
    noted = [json.loads(file.read_text())["others"] for file in sorted(cells.glob(f"*{SUFFIX}"))]
    return {"mean": round(fmean(noted), 3), "most": round(max(noted), 3)} if noted else None


def busy_seconds(text: str, ticks: int) -> float:
    """Return the seconds that all cores together were busy, from the text of ``/proc/stat``."""
    values = [int(word) for word in text.split("\n", 1)[0].split()[1 : COLUMNS + 1]]
    return sum(value for column, value in enumerate(values) if column not in IDLE) / ticks


def _busy() -> float:
    return busy_seconds(STAT.read_text(), os.sysconf("SC_CLK_TCK"))


def _own() -> float:
    """Return the CPU time of all ended processes that descend from this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
