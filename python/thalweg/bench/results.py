"""Computes the results of each cell from its runs: the table, ``bench.json`` and ``bench.csv``."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Final, TypeAlias

from thalweg.bench.matrix import Cell, Matrix, Skipped
from thalweg.bench.values import ByKind, CellNumbers, Outcome
from thalweg.report.numbers import divided, spread
from thalweg.report.values import Spread

Column: TypeAlias = Callable[[CellNumbers], object]


def cells(matrix: Matrix, outcomes: Iterable[Outcome]) -> list[CellNumbers]:
    """Return the result of each cell in the matrix's order, including cells that were skipped."""
    by_cell: dict[int, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_cell[outcome.cell].append(outcome)
    rows = [_cell(cell, by_cell[cell.number], matrix.plan.repetitions) for cell in matrix.cells]
    rows += [_skipped(one) for one in matrix.skipped]
    return sorted(rows, key=lambda row: row.cell)


def _skipped(one: Skipped) -> CellNumbers:
    return figures(one.number, one.settings, "skipped", [one.reason], ())


def _cell(cell: Cell, outcomes: Sequence[Outcome], repetitions: int) -> CellNumbers:
    complete = [outcome for outcome in outcomes if outcome.status == "complete"]
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    whole = "complete" if len(complete) >= repetitions else "partly" if complete else "not run"
    status = "failed" if failed and not complete else whole
    reasons = dict.fromkeys(outcome.reason for outcome in failed if outcome.reason is not None)
    return figures(cell.number, cell.settings, status, list(reasons), outcomes)


def figures(
    number: int, settings: Mapping[str, str], status: str, reasons: Sequence[str], outcomes: Sequence[Outcome]
) -> CellNumbers:
    """Return the results of a cell from its runs: times are over rounds, the rest over runs."""
    complete = [outcome for outcome in outcomes if outcome.status == "complete"]
    runs = [outcome.numbers for outcome in complete if outcome.numbers is not None]
    rounds = [row for run in runs for row in run.rounds]
    return CellNumbers(
        cell=number,
        settings=dict(settings),
        status=status,
        reasons=reasons,
        repetitions=len(complete),
        failed=sum(outcome.status == "failed" for outcome in outcomes),
        rounds=len(rounds),
        incomplete_rounds=sum(not row.complete for row in rounds),
        round_seconds=spread(row.seconds for row in rounds),
        round_seconds_by_run=[_median(row.seconds for row in run.rounds) for run in runs],
        bound_seconds=_median(row.bound_seconds for row in rounds),
        # Rounds of one run are not independent of each other, so comparisons of cells use one median for each run.
        communication_seconds=spread(row.communication_seconds for row in rounds),
        communication_seconds_by_run=[_median(row.communication_seconds for row in run.rounds) for run in runs],
        fedcomm_communication_seconds=spread(row.fedcomm_communication_seconds for row in rounds),
        fedcomm_communication_seconds_by_run=[
            _median(row.fedcomm_communication_seconds for row in run.rounds) for run in runs
        ],
        # The bound covers sending the model and returning the updates. FedComm's time starts after the model was sent,
        # so it is not compared with the bound.
        share_of_bound=_median(divided(row.bound_seconds, row.communication_seconds) for row in rounds),
        retransmissions=_median(run.retransmissions for run in runs),
        update_bytes=_median(run.update_bytes for run in runs),
        wire_bytes=_median(run.wire_bytes for run in runs),
        wire_ratio=_median(run.wire_ratio for run in runs),
        accuracy=_median(run.accuracy for run in runs),
        cpu_seconds=_medians([run.cpu_seconds for run in runs]),
        peak_rss_bytes=_medians([run.peak_rss_bytes for run in runs]),
        wire_counted=_words(run.wire_counted for run in runs),
        congestion_control=_words(run.congestion_control for run in runs),
        unasked_congestion_control=_words(run.unasked_congestion_control for run in runs),
        emulation=_words(run.emulation for run in runs),
        bound_source=_words(run.bound_source for run in runs),
        seconds_a_run=fmean(outcome.seconds for outcome in complete) if complete else None,
        records=[outcome.record for outcome in outcomes if outcome.record],
    )


def _medians(runs: Sequence[ByKind[float]] | Sequence[ByKind[int]]) -> ByKind[float]:
    return ByKind(
        _median(run.server for run in runs), _median(run.clients for run in runs), _median(run.others for run in runs)
    )


def _words(values: Iterable[str | None]) -> str | None:
    """Return the distinct words as one text, or None if there are none."""
    return "; ".join(sorted({value for value in values if value})) or None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def to_csv(axes: Iterable[str], rows: Iterable[CellNumbers]) -> str:
    """Return cells as CSV: one line for each cell, with one column for each axis."""
    axes = list(axes)
    text = io.StringIO()
    out = csv.writer(text)
    out.writerow(["cell", *axes, *COLUMNS])
    for row in rows:
        out.writerow([row.cell, *(row.settings[axis] for axis in axes), *(value(row) for value in COLUMNS.values())])
    return text.getvalue()


def _spread(name: str, of: Callable[[CellNumbers], Spread | None]) -> dict[str, Column]:
    """Return the columns of a spread of times."""

    def column(part: Callable[[Spread], float]) -> Column:
        return lambda row: None if (times := of(row)) is None else part(times)

    return {
        f"{name}_median": column(lambda spread: spread.median),
        f"{name}_min": column(lambda spread: spread.min),
        f"{name}_max": column(lambda spread: spread.max),
    }


# The columns of the CSV file after the settings.
COLUMNS: Final[Mapping[str, Column]] = {
    "status": lambda row: row.status,
    "repetitions": lambda row: row.repetitions,
    "failed": lambda row: row.failed,
    "rounds": lambda row: row.rounds,
    "incomplete_rounds": lambda row: row.incomplete_rounds,
    **_spread("communication_seconds", lambda row: row.communication_seconds),
    **_spread("fedcomm_communication_seconds", lambda row: row.fedcomm_communication_seconds),
    **_spread("round_seconds", lambda row: row.round_seconds),
    "bound_seconds": lambda row: row.bound_seconds,
    "share_of_bound": lambda row: row.share_of_bound,
    "retransmissions": lambda row: row.retransmissions,
    "accuracy": lambda row: row.accuracy,
    "update_bytes": lambda row: row.update_bytes,
    "wire_bytes": lambda row: row.wire_bytes,
    "wire_ratio": lambda row: row.wire_ratio,
    "wire_counted": lambda row: row.wire_counted,
    "cpu_seconds_server": lambda row: row.cpu_seconds.server,
    "cpu_seconds_clients": lambda row: row.cpu_seconds.clients,
    "cpu_seconds_others": lambda row: row.cpu_seconds.others,
    "peak_rss_bytes_server": lambda row: row.peak_rss_bytes.server,
    "peak_rss_bytes_clients": lambda row: row.peak_rss_bytes.clients,
    "peak_rss_bytes_others": lambda row: row.peak_rss_bytes.others,
    "seconds_a_run": lambda row: row.seconds_a_run,
    "congestion_control": lambda row: row.congestion_control,
    "emulation": lambda row: row.emulation,
    "reason": lambda row: "; ".join(row.reasons) or None,
}
