"""What a bench shows on the terminal: its progress, and the tables at its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from thalweg.bench.answers import sender
from thalweg.bench.matrix import label
from thalweg.bench.results import KINDS, SHOWN
from thalweg.ui import terminal
from thalweg.ui.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

CAPTION: Final = (
    "median over rounds (least to most); measured: while at least one update was under way; FedComm: from the model's "
    "having been sent to the mean, less the clients' mean computation, as FedComm's code counts; share: of measured "
    "that is the bound"
)
NAMES: Final = {"measured": "measured", "fedcomm": "FedComm"}
LABEL: Final = 20
MOST_ANSWERS: Final = 24
SCALES: Final = ((1.0, "s"), (1e3, "ms"), (1e6, "us"))


class Progress(Protocol):
    """Shows the progress of a bench."""

    def note(self, text: str) -> None:
        """Show a line."""

    def begin(self, done: int, total: int, what: str, left: str) -> None:
        """Show that the next run begins, after ``done`` of ``total``."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class LineProgress:
    """Shows one line for each run."""

    def note(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def begin(self, done: int, total: int, what: str, left: str) -> None:
        pass

    def close(self) -> None:
        pass


class Bar:
    """Shows a progress bar for the bench below the lines."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._bar = Progress(
            BarColumn(bar_width=30),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=terminal.console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("", total=None)
        self._bar.start()

    def note(self, text: str) -> None:
        self._bar.console.print(text, highlight=False, markup=False)

    def begin(self, done: int, total: int, what: str, left: str) -> None:
        self._bar.update(self._task, total=total, completed=done, description=f"{done}/{total} {what}; {left}")

    def close(self) -> None:
        self._bar.stop()


def progress_on_stderr() -> Progress:
    """Return a bar if standard error is a terminal, else lines."""
    return Bar() if sys.stderr.isatty() else LineProgress()


def duration(seconds: float) -> str:
    """Return a duration as ``42 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def run_line(done: int, total: int, what: str, outcome: Mapping[str, Any], left: str) -> str:
    """Return one line about a run that has ended."""
    head = f"[{done}/{total}] {what}: "
    if outcome["status"] != "complete":
        return f"{head}failed after {duration(outcome['seconds'])}: {outcome['reason']}; {left}"
    times = [row["communication_seconds"] for row in outcome["numbers"]["rounds"]]
    known = sorted(value for value in times if value is not None)
    shown = f"communication {format_seconds(known[len(known) // 2])} a round, " if known else ""
    return f"{head}{shown}{duration(outcome['seconds'])} in all; {left}"


def tables(rows: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> list[Table]:
    """Return the two tables of a bench's cells: times, and costs (CPU, memory, bytes)."""
    return [_time_table(rows, axes), _cost_table(rows, axes)]


def _time_table(rows: Iterable[Mapping[str, Any]], axes: Sequence[str]) -> Table:
    made = _started(axes, ("runs", *NAMES.values(), "round", "bound", "share"), CAPTION)
    for row in rows:
        cells = [
            runs(row) if row["repetitions"] else row["status"],
            times(row[SHOWN["measured"]]),
            *(_part(middle(row[key]), format_seconds) for key in (SHOWN["fedcomm"], "round_seconds")),
            _part(row["bound_seconds"], format_seconds),
            _part(row["share_of_bound"], lambda value: f"{100 * value:.0f} %"),
        ]
        made.add_row(str(row["cell"]), _label(row), *cells)
    return made


def middle(of: Mapping[str, float] | None) -> float | None:
    """Return the median of a summary of times, or None without times."""
    return None if of is None else of["median"]


def runs(row: Mapping[str, Any]) -> str:
    """Return how many runs ended, how many failed, and how many of their rounds were incomplete."""
    told = [
        f"{row[key]} {word}" for key, word in (("failed", "failed"), ("incomplete_rounds", "rounds short")) if row[key]
    ]
    return ", ".join([str(row["repetitions"]), *told])


def _cost_table(rows: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> Table:
    kinds = [kind for kind in KINDS if kind != "others" or any(row["cpu_seconds"][kind] is not None for row in rows)]
    head = ["resent", "wire/update", *(f"CPU {kind}" for kind in kinds), *(f"mem {kind}" for kind in kinds)]
    caption = (
        "of a run, median over runs; resent: segments (of ltp: chunks) sent again by all parties of a run, - where not "
        "all are counted; wire/update: bytes of IP on the clients' links where they are emulated at packet level, else "
        "as the transport counts; mem: the most that one such party had resident"
    )
    made = _started(axes, head, caption)
    for row in rows:
        cells = [
            _part(row["retransmissions"], lambda value: f"{value:.0f}"),
            _part(row["wire_ratio"], lambda value: f"{value:.3f}"),
            *(_part(row["cpu_seconds"][kind], format_seconds) for kind in kinds),
            *(_part(row["peak_rss_bytes"][kind], format_bytes) for kind in kinds),
        ]
        made.add_row(str(row["cell"]), _label(row), *cells)
    return made


def _started(axes: Iterable[str], head: Iterable[str], caption: str) -> Table:
    made = terminal.table("cell", caption=caption)
    # Settings may wrap; numbers may not.
    made.add_column(", ".join(axes), min_width=LABEL, overflow="fold")
    for heading in head:
        made.add_column(heading, justify="right", no_wrap=True)
    return made


def _label(row: Mapping[str, Any]) -> str:
    said = ", ".join(row["settings"].values()) or label({})
    return f"{said} ({sender(row)})" if sender(row) else said


def answer_lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a bench's answers, one line for each place (at most ``MOST_ANSWERS``), and the notes on them."""
    lines = [f"{one['place']}: {one['sentence']}" if one["place"] else one["sentence"] for one in found[:MOST_ANSWERS]]
    rest = len(found) - MOST_ANSWERS
    lines += [f"{rest} more answers are in bench.json"] if rest > 0 else []
    return [*lines, *(f"note: {note}" for note in dict.fromkeys(note for one in found for note in one["notes"]))]


def times(of: Mapping[str, float] | None) -> str:
    """Return the median of times with the least and the most, as ``2.3 ms (1.1 to 3.0)``."""
    if of is None:
        return "-"
    factor, unit = next(scale for scale in SCALES if of["median"] * scale[0] >= 1 or scale is SCALES[-1])
    middle, least, most = (_short(of[key] * factor) for key in ("median", "min", "max"))
    return f"{middle} {unit} ({least} to {most})"


def _short(value: float) -> str:
    """Return a number with three figures, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _part(value: float | None, form: Callable[[float], str]) -> str:
    return "-" if value is None else form(value)
