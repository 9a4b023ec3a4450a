"""The results of an experiment: reduces a bench's results to the numbers that figures and tables show.

Each mode in ``measured.json`` says how it was measured. ``command`` is the command line. ``commit`` is the commit of
the checkout and ``core`` that of the compiled core, both with ``-dirty`` if there were uncommitted changes. ``began``
and ``ended`` are times. ``load`` has the number of cores that other programs kept busy: the mean, and the maximum of a
run. ``machine`` describes the machine. ``by_run`` of a cell has the numbers of each run.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from thalweg.bench.values import CellNumbers, Results, RunNumbers
from thalweg.errors import RecordError
from thalweg.report.text import is_dirty
from thalweg.wire import table_of

FILE: Final = "measured.json"
Table = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A cell of one mode: its labels by axis, and its results. Times are seconds of all rounds of a run."""

    labels: Mapping[str, str]
    numbers: Mapping[str, Any]

    @property
    def runs(self) -> int:
        """The number of runs over which its medians are taken."""
        return int(self.numbers.get("runs", 1))

    def in_run(self, at: int) -> Cell | None:
        """Return the cell with the numbers of run ``number``, from 0; None if only medians over runs were kept."""
        by_run = self.numbers.get("by_run")
        if by_run is not None:
            return Cell(self.labels, {**self.numbers, **by_run[at]}) if at < len(by_run) else None
        return self if self.runs <= 1 else None

    def is_at(self, place: Mapping[str, str]) -> bool:
        """Return whether the cell has these labels. ``*``, or an axis that is not named, matches any label."""
        return all(label in ("*", self.labels.get(axis)) for axis, label in place.items())


def of_bench(results: Results, more: Mapping[int, Table] | None = None, how: Mapping[str, Any] | None = None) -> Table:
    """Return a mode's part of ``measured.json`` from the results of a bench.

    ``more`` has further numbers of cells, by the cell's number. ``how`` says how the mode was measured: command,
    commit, load.
    """
    runs: dict[int, list[RunNumbers]] = {}
    for run in results.runs:
        if run.numbers is not None:
            runs.setdefault(run.cell, []).append(run.numbers)
    started = sorted(run.started for run in results.runs)
    return {
        **(how or {}),
        "core": results.thalweg.commit,
        "began": started[0] if started else None,
        "ended": started[-1] if started else None,
        "accounting": results.accounting,
        "repetitions": results.repetitions,
        "machine": {"kernel": results.kernel, **table_of(results.machine)},
        "axes": results.axes,
        "cells": [
            _joined(_cell(row, runs.get(row.cell, []), results.accounting), (more or {}).get(row.cell, {}))
            for row in results.cells
        ],
    }


def _joined(cell: Table, more: Table) -> Table:
    own: list[Table] = cell["by_run"]
    others: list[Table] = more.get("by_run", own)
    return {**cell, **more, "by_run": [{**one, **other} for one, other in zip(own, others, strict=True)]}


def scalars(tables: Iterable[Mapping[str, Any]]) -> list[Table]:
    """Return the scalar numbers of each run, for ``by_run``."""
    return [
        {
            key: rounded(value) if isinstance(value, float) else value
            for key, value in table.items()
            if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
        }
        for table in tables
    ]


def _cell(row: CellNumbers, runs: Sequence[RunNumbers], accounting: str) -> Table:
    totals = {
        "measured": [_sum(one.communication_seconds for one in run.rounds) for run in runs],
        "fedcomm": [_sum(one.fedcomm_communication_seconds for one in run.rounds) for run in runs],
    }
    known = [value for value in totals[accounting] if value is not None]
    bounds = [_sum(one.bound_seconds for one in run.rounds) for run in runs]
    ends = [[run.rounds[-1].accuracy] if run.rounds else [] for run in runs]
    cpu = row.cpu_seconds
    used = {"server": cpu.server, "clients": cpu.clients, "others": cpu.others}
    return {
        "labels": row.settings,
        "status": row.status,
        "reasons": row.reasons,
        "runs": len(runs),
        "rounds": row.rounds,
        "incomplete_rounds": row.incomplete_rounds,
        "seconds": rounded(median(known)) if known else None,
        "seconds_by_accounting": {way: middle(values) for way, values in totals.items()},
        "seconds_by_run": [rounded(value) for value in known],
        "bound_seconds": middle(bounds),
        "retransmissions": row.retransmissions,
        "wire_ratio": rounded(row.wire_ratio),
        "cpu_seconds": {kind: rounded(value) for kind, value in used.items()},
        "peak_rss_bytes": table_of(row.peak_rss_bytes),
        "congestion_control": row.congestion_control,
        "accuracy": [middle(values) for values in _by_round(runs)],
        "by_run": [
            {"seconds": rounded(value), "accuracy": [one for one in end if one is not None]}
            for value, end in zip(totals[accounting], ends, strict=True)
        ],
    }


def _by_round(runs: Sequence[RunNumbers]) -> Iterable[list[float | None]]:
    series = [[one.accuracy for one in run.rounds] for run in runs]
    columns = [list(values) for values in zip(*series, strict=False)]
    return columns if any(value is not None for values in columns for value in values) else []


def rounded(value: float | None) -> float | None:
    """Return a number with four significant digits."""
    return None if value is None else float(f"{value:.4g}")


def _sum(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known or not known else sum(value for value in known if value is not None)


def middle(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values with four significant digits; None without values."""
    known = [value for value in values if value is not None]
    return rounded(median(known)) if known else None


def read(file: Path) -> dict[str, list[Cell]]:
    """Return the cells of each mode in a file. Raises RecordError if it is damaged."""
    try:
        modes: Mapping[str, Any] = json.loads(file.read_text())["modes"]
        return {mode: [Cell(cell["labels"], cell) for cell in part["cells"]] for mode, part in modes.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{file} has no results: {error}", "Run the experiment again") from error


@dataclass(frozen=True)
class Origin:
    """How a mode was measured; None is unknown. ``commit`` and ``core``: commits of the checkout and of the core."""

    commit: str | None
    core: str | None
    command: str | None
    began: str | None
    load: Mapping[str, float] | None

    @property
    def is_exact(self) -> bool:
        """Whether the commits identify the measured code exactly."""
        return all(one is not None and not is_dirty(one) for one in (self.commit, self.core))


def origins(file: Path) -> dict[str, Origin]:
    """Return how each mode in a file was measured. Raises RecordError if it is damaged."""
    try:
        modes: Mapping[str, Any] = json.loads(file.read_text())["modes"]
        return {mode: _origin(part) for mode, part in modes.items()}
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise RecordError(f"{file} has no results: {error}", "Run the experiment again") from error


def _origin(part: Mapping[str, Any]) -> Origin:
    # Older files lack ``core`` and ``commit``: the core's commit is in ``machine``, and is the checkout's too.
    core = part.get("core", part.get("machine", {}).get("commit"))
    return Origin(part.get("commit", core), core, part.get("command"), part.get("began"), part.get("load"))


def checkout() -> str | None:
    """Return the commit of this checkout, with ``-dirty`` if anything but results differs from it; None without git."""
    results = (":(exclude)experiments/*/*.json", ":(exclude)experiments/*/*.png", ":(exclude)experiments/*/*.svg")
    status = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *results, ":(exclude)*/RESULTS.md")
    commit = _git("rev-parse", "--short=12", "HEAD")
    return None if commit is None or status is None else f"{commit}-dirty" if status else commit


def _git(*words: str) -> str | None:
    root = Path(__file__).parent.parent
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)  # noqa: S607
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _before(file: Path, scale: str) -> dict[str, Table]:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}  # the first run, or one that was damaged
    return dict(content.get("modes", {})) if content.get("scale") == scale else {}


def write(file: Path, name: str, scale: str, modes: Mapping[str, Table], order: Sequence[str]) -> None:
    """Write the measurements of each mode, in ``order``. The file keeps other modes that have this scale."""
    all_modes = {**_before(file, scale), **modes}
    content = {
        "experiment": name,
        "scale": scale,
        "modes": {mode: all_modes[mode] for mode in order if mode in all_modes},
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1) + "\n")
