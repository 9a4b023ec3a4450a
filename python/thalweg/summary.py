"""The table at the end of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from thalweg.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from thalweg.bound import Bound
    from thalweg.host import Result


WIDTH: Final = 110


def summary(entries: Iterable[Mapping[str, Any]], bound: Bound) -> Table:
    """Return a row a round; goodput is the updates' bytes by the communication's seconds."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, caption=f"bound: {bound.source}", caption_justify="left")
    for heading in ("round", "accuracy", "time", "communication", "down", "up", "participants", "goodput", "of bound"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in entries:
        table.add_row(*_cells(entry, bound))
    return table


def _cells(entry: Mapping[str, Any], bound: Bound) -> list[str]:
    accuracy = entry["accuracy"]
    return [
        str(entry["round"]),
        "-" if accuracy is None else f"{100 * accuracy:.2f} %",
        format_seconds(entry["seconds"]),
        format_seconds(entry["communication_seconds"]),
        format_bytes(entry["bytes_down"]),
        format_bytes(entry["bytes_up"]),
        f"{entry['participants']}/{entry['expected']}",
        *_goodput(entry, bound),
    ]


def _goodput(entry: Mapping[str, Any], bound: Bound) -> tuple[str, str]:
    down, up = (_payload_bytes(entry, direction) for direction in ("down", "up"))
    seconds = entry["communication_seconds"]
    if not seconds:
        return "-", "-"
    links = len({transfer["client"] for transfer in entry["transfers"]})
    least = bound.seconds(down, up, links)
    share = "-" if least is None else f"{100 * least / seconds:.0f} %"
    return format_rate(8 * (down + up) / seconds), share


def _payload_bytes(entry: Mapping[str, Any], direction: str) -> int:
    return sum(transfer["bytes"] for transfer in entry["transfers"] if transfer["direction"] == direction)


def show(result: Result) -> None:
    """Print the table and where the record is."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(summary(result.entries, result.bound))
    console.print(f"record: {result.record}", highlight=False, markup=False, soft_wrap=True)
