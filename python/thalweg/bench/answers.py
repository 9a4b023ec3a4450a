"""The answers of a bench: for each combination of its other settings, which way to move updates is fastest.

A way is a transport with its options, or a case. The other settings, such as the network, are a ``place``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from thalweg.bench.axes import CASE, SHORT
from thalweg.bench.results import SHOWN
from thalweg.report.senders import unasked_bbr
from thalweg.ui.verdict import verdict

# An axis of this section is part of the way, so its values are compared. Any other axis belongs to the place.
SECTION: Final = "transport."
Row = Mapping[str, Any]


def is_way(axis: str) -> bool:
    """Return whether the values of an axis are compared with each other."""
    return axis == CASE or SHORT.get(axis, axis).startswith(SECTION)


def way(row: Row) -> str:
    """Return a cell's name in a comparison: its way, and the congestion control if the settings do not name it."""
    words = [value for axis, value in row["settings"].items() if is_way(axis)]
    return " ".join([*words, *_sender(row)])


def sender(row: Row) -> str:
    """Return the congestion control of a cell's senders if its settings do not name it, else an empty text."""
    return "".join(_sender(row))


def _sender(row: Row) -> list[str]:
    found = row["congestion_control"]
    said = " ".join(row["settings"].values()).replace(",", " ").replace("=", " ").split()
    return [] if found is None or found in said else [found]


def answers(rows: Sequence[Row], accounting: str) -> list[dict[str, Any]]:
    """Return a verdict for each place with several ways; ``place`` has the other settings in words."""
    by_place: dict[str, list[Row]] = {}
    for row in rows:
        if row["status"] != "skipped":
            words = ", ".join(f"{axis} {value}" for axis, value in row["settings"].items() if not is_way(axis))
            by_place.setdefault(words, []).append(row)
    return [
        {"place": place, **_answer(found, accounting), "notes": _notes(found)}
        for place, found in by_place.items()
        if len({tuple(row["settings"].items()) for row in found}) > 1
    ]


def _answer(rows: Sequence[Row], accounting: str) -> dict[str, Any]:
    names = {row["cell"]: way(row) for row in rows}
    # If all runs of a cell failed, its congestion control is unknown, so its name lacks it.
    values = {names[row["cell"]]: _known(row[f"{SHOWN[accounting]}_by_run"]) for row in rows}
    return verdict(values, {names[row["cell"]]: row["failed"] for row in rows}).table()


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _notes(rows: Sequence[Row]) -> list[str]:
    return unasked_bbr((way(row), row["unasked_congestion_control"]) for row in rows)
