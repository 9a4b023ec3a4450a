"""The answers of a bench: which way to move updates is fastest, for each combination of the other settings.

A way is a transport with its options, a case, or another system. The other settings, such as the network, are a
``condition``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from thalweg.bench.axes import NOT_ITS, is_way
from thalweg.bench.values import Answer, CellNumbers
from thalweg.report.senders import bbr_by_default
from thalweg.ui.verdict import Verdict, verdict

# For each way of accounting, the times that are compared.
BY_RUN: Final[Mapping[str, Callable[[CellNumbers], Sequence[float | None]]]] = {
    "measured": lambda row: row.communication_seconds_by_run,
    "fedcomm": lambda row: row.fedcomm_communication_seconds_by_run,
    "round": lambda row: row.round_seconds_by_run,
}


def way(row: CellNumbers) -> str:
    """Return a cell's name in a comparison: its way, and the congestion control if the settings do not name it."""
    words = [value for axis, value in row.settings.items() if is_way(axis) and value != NOT_ITS]
    return " ".join([*words, *_sender(row)])


def sender(row: CellNumbers) -> str:
    """Return the congestion control of a cell's senders if its settings do not name it, else an empty text."""
    return "".join(_sender(row))


def _sender(row: CellNumbers) -> list[str]:
    control = row.congestion_control
    words = " ".join(row.settings.values()).replace(",", " ").replace("=", " ").split()
    return [] if control is None or control in words else [control]


def answers(rows: Sequence[CellNumbers], accounting: str) -> list[Answer]:
    """Return a verdict for each condition with several ways; ``condition`` has the other settings in words."""
    by_condition: dict[str, list[CellNumbers]] = {}
    for row in rows:
        if row.status != "skipped":
            words = ", ".join(f"{axis} {value}" for axis, value in row.settings.items() if not is_way(axis))
            by_condition.setdefault(words, []).append(row)
    return [
        Answer(condition, _answer(cells_of_condition, accounting), _notes(cells_of_condition))
        for condition, cells_of_condition in by_condition.items()
        if len({tuple(row.settings.items()) for row in cells_of_condition}) > 1
    ]


def _answer(rows: Sequence[CellNumbers], accounting: str) -> Verdict:
    by_run = BY_RUN[accounting]
    names = {row.cell: way(row) for row in rows}
    # If all runs of a cell failed, its congestion control is unknown, so its name lacks it.
    values = {names[row.cell]: _known(by_run(row)) for row in rows}
    return verdict(values, {names[row.cell]: row.failed for row in rows})


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _notes(rows: Sequence[CellNumbers]) -> list[str]:
    return bbr_by_default((way(row), row.unasked_congestion_control) for row in rows)
