"""What an experiment came to: from a bench's results to the few numbers that figures and tables are made of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from thalweg.bench.results import SHOWN
from thalweg.errors import RecordError

FILE: Final = "measured.json"
Table = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A cell of one mode: its labels by axis, and what came of it. Times are seconds of all rounds of a run."""

    labels: Mapping[str, str]
    numbers: Mapping[str, Any]

    def is_at(self, place: Mapping[str, str]) -> bool:
        """Whether it has these labels; an axis that is not named or is ``*`` may have any."""
        return all(label in ("*", self.labels.get(axis)) for axis, label in place.items())


def of_bench(found: Mapping[str, Any], more: Mapping[int, Table] | None = None) -> Table:
    """Return a mode's part of ``measured.json`` from the results of a bench; ``more`` joins cells, by number."""
    runs: dict[int, list[Any]] = {}
    for run in found["runs"]:
        if run["status"] == "complete":
            runs.setdefault(run["cell"], []).append(run["numbers"])
    return {
        "accounting": found["accounting"],
        "repetitions": found["repetitions"],
        "machine": {"commit": found["thalweg"]["commit"], "kernel": found["kernel"], **found["machine"]},
        "axes": found["axes"],
        "cells": [
            {**_cell(row, runs.get(row["cell"], []), found["accounting"]), **(more or {}).get(row["cell"], {})}
            for row in found["cells"]
        ],
    }


def _cell(row: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], accounting: str) -> Table:
    totals = {way: [_sum(one[key] for one in run["rounds"]) for run in runs] for way, key in SHOWN.items()}
    known = [value for value in totals[accounting] if value is not None]
    bounds = [_sum(one["bound_seconds"] for one in run["rounds"]) for run in runs]
    cpu = row["cpu_seconds"]
    return {
        "labels": row["settings"],
        "status": row["status"],
        "reasons": row["reasons"],
        "runs": len(runs),
        "rounds": row["rounds"],
        "incomplete_rounds": row["incomplete_rounds"],
        "seconds": rounded(median(known)) if known else None,
        "seconds_by_accounting": {way: middle(values) for way, values in totals.items()},
        "seconds_by_run": [rounded(value) for value in known],
        "bound_seconds": middle(bounds),
        "retransmissions": row["retransmissions"],
        "wire_ratio": rounded(row["wire_ratio"]),
        "cpu_seconds": {kind: rounded(cpu[kind]) for kind in cpu},
        "peak_rss_bytes": row["peak_rss_bytes"],
        "congestion_control": row["congestion_control"],
        "accuracy": [middle(values) for values in _by_round(runs)],
    }


def _by_round(runs: Sequence[Mapping[str, Any]]) -> Iterable[list[float | None]]:
    series = [[one.get("accuracy") for one in run["rounds"]] for run in runs]
    columns = [list(values) for values in zip(*series, strict=False)]
    return columns if any(value is not None for values in columns for value in values) else []


def rounded(value: float | None) -> float | None:
    """Return a number with four digits that count."""
    return None if value is None else float(f"{value:.4g}")


def _sum(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known or not known else sum(value for value in known if value is not None)


def middle(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values with four digits that count; None if there are none."""
    known = [value for value in values if value is not None]
    return rounded(median(known)) if known else None


def read(file: Path) -> dict[str, list[Cell]]:
    """Return the cells of each mode in a file. Raises RecordError if it is damaged."""
    try:
        modes: Mapping[str, Any] = json.loads(file.read_text())["modes"]
        return {mode: [Cell(cell["labels"], cell) for cell in part["cells"]] for mode, part in modes.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{file} has no results: {error}", "Run the experiment again") from error


def commits(file: Path) -> dict[str, str | None]:
    """Return the commit of the build that measured each mode in a file; None if it is not known. Raises RecordError."""
    try:
        modes: Mapping[str, Any] = json.loads(file.read_text())["modes"]
        return {mode: part.get("machine", {}).get("commit") for mode, part in modes.items()}
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise RecordError(f"{file} has no results: {error}", "Run the experiment again") from error


def _before(file: Path, scale: str) -> dict[str, Table]:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}  # the first run, or one that was damaged
    return dict(content.get("modes", {})) if content.get("scale") == scale else {}


def write(file: Path, name: str, scale: str, modes: Mapping[str, Table], order: Sequence[str]) -> None:
    """Write what was measured in each mode, in ``order``. What the file has of other modes at this scale stays."""
    found = {**_before(file, scale), **modes}
    content = {"experiment": name, "scale": scale, "modes": {mode: found[mode] for mode in order if mode in found}}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1) + "\n")
