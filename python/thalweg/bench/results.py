"""Computes the results of each cell from its runs: the table, ``bench.json`` and ``bench.csv``."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any, Final

from thalweg.bench.matrix import Cell, Matrix, Skipped
from thalweg.report.numbers import divided, spread

Outcome = Mapping[str, Any]
KINDS: Final = ("server", "clients", "others")
TIMES: Final = ("communication_seconds", "fedcomm_communication_seconds")
# The time that the table shows, by accounting.
SHOWN: Final = {"measured": "communication_seconds", "fedcomm": "fedcomm_communication_seconds"}


def cells(matrix: Matrix, outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Return the result of each cell in the matrix's order, including cells that were skipped."""
    by_cell: dict[int, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_cell[outcome["cell"]].append(outcome)
    rows = [_cell(cell, by_cell[cell.number], matrix.plan.repetitions) for cell in matrix.cells]
    rows += [_skipped(one) for one in matrix.skipped]
    return sorted(rows, key=lambda row: row["cell"])


def _skipped(one: Skipped) -> dict[str, Any]:
    head = {"cell": one.number, "settings": dict(one.settings), "status": "skipped", "reasons": [one.reason]}
    return {**head, "repetitions": 0, "failed": 0, **figures([])}


def _cell(cell: Cell, outcomes: Sequence[Outcome], repetitions: int) -> dict[str, Any]:
    complete = [outcome for outcome in outcomes if outcome["status"] == "complete"]
    failed = [outcome for outcome in outcomes if outcome["status"] == "failed"]
    whole = "complete" if len(complete) >= repetitions else "partly" if complete else "not run"
    return {
        "cell": cell.number,
        "settings": dict(cell.settings),
        "status": "failed" if failed and not complete else whole,
        "reasons": list(dict.fromkeys(outcome["reason"] for outcome in failed)),
        "repetitions": len(complete),
        "failed": len(failed),
        **figures([outcome["numbers"] for outcome in complete]),
        "seconds_a_run": fmean(outcome["seconds"] for outcome in complete) if complete else None,
        "records": [outcome["record"] for outcome in outcomes if outcome["record"]],
    }


def figures(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results of a cell from the numbers of its runs: times are over rounds, the rest over runs."""
    rounds = [row for run in runs for row in run["rounds"]]
    found: dict[str, Any] = {
        "rounds": len(rounds),
        "incomplete_rounds": sum(not row["complete"] for row in rounds),
        "round_seconds": spread(row["seconds"] for row in rounds),
        "bound_seconds": _median(row["bound_seconds"] for row in rounds),
    }
    for key in TIMES:
        found[key] = spread(row[key] for row in rounds)
        # Rounds within a run are alike, so comparisons of cells use these medians of runs.
        found[f"{key}_by_run"] = [_median(row[key] for row in run["rounds"]) for run in runs]
    # Only the first of TIMES is compared with the bound. The bound covers sending the model and returning the updates,
    # but FedComm's time starts after the model was sent.
    found["share_of_bound"] = _median(divided(row["bound_seconds"], row[TIMES[0]]) for row in rounds)
    for key in ("retransmissions", "update_bytes", "wire_bytes", "wire_ratio", "accuracy"):
        found[key] = _median(run[key] for run in runs)
    for key in ("cpu_seconds", "peak_rss_bytes"):
        found[key] = {kind: _median(run[key][kind] for run in runs) for kind in KINDS}
    for key in ("wire_counted", "congestion_control", "unasked_congestion_control", "emulation", "bound_source"):
        words = sorted({run[key] for run in runs if run.get(key)})
        found[key] = "; ".join(words) or None
    return found


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def to_csv(axes: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return cells as CSV: one line for each cell, with one column for each axis."""
    axes = list(axes)
    text = io.StringIO()
    out = csv.writer(text)
    out.writerow(["cell", *axes, *(name for name, _ in _columns({}))])
    for row in rows:
        out.writerow([row["cell"], *(row["settings"][axis] for axis in axes), *(value for _, value in _columns(row))])
    return text.getvalue()


def _columns(row: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the columns after the settings, with a cell's values. For an empty row only the names are meaningful."""
    plain = ["status", "repetitions", "failed", "rounds", "incomplete_rounds"]
    found = [(key, row.get(key)) for key in plain]
    for key in (*TIMES, "round_seconds"):
        found += [(f"{key}_{part}", (row.get(key) or {}).get(part)) for part in ("median", "min", "max")]
    keys = ("bound_seconds", "share_of_bound", "retransmissions", "accuracy")
    found += [(key, row.get(key)) for key in (*keys, "update_bytes", "wire_bytes", "wire_ratio", "wire_counted")]
    for key in ("cpu_seconds", "peak_rss_bytes"):
        found += [(f"{key}_{kind}", (row.get(key) or {}).get(kind)) for kind in KINDS]
    found += [(key, row.get(key)) for key in ("seconds_a_run", "congestion_control", "emulation")]
    return [*found, ("reason", "; ".join(row.get("reasons") or []) or None)]
