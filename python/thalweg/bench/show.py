"""What a bench shows on the terminal: its progress, and the tables at its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from thalweg.bench.answers import sender
from thalweg.bench.matrix import label
from thalweg.bench.values import Answer, ByKind, CellNumbers, Outcome
from thalweg.report.numbers import divided
from thalweg.report.values import Spread
from thalweg.ui import terminal
from thalweg.ui.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

CAPTION: Final = (
    "median over rounds (least to most); measured: while at least one update was under way; FedComm: from the model's "
    "having been sent to the mean, less the clients' mean computation, as FedComm's code counts; share: of measured "
    "that is the bound"
)
ROUND_CAPTION: Final = (
    "median over rounds (least to most); round: from when the server has the model until it has the mean; share: of it "
    "that is the bound; measured: of thalweg, while at least one update was under way"
)
SYSTEMS_CAPTION: Final = "; CPU: of thalweg with the start of its processes, of other systems in the rounds alone"
NAMES: Final = {"measured": "measured", "fedcomm": "FedComm"}
LABEL: Final = 20
# The kinds of parties that always have columns. Other kinds have columns only if the bench has such parties.
KINDS: Final = ("server", "clients")
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


def run_line(done: int, total: int, what: str, outcome: Outcome, left: str) -> str:
    """Return one line about a run that has ended."""
    head = f"[{done}/{total}] {what}: "
    if outcome.status != "complete":
        return f"{head}failed after {duration(outcome.seconds)}: {outcome.reason}; {left}"
    times = [row.communication_seconds for row in outcome.numbers.rounds] if outcome.numbers is not None else []
    rounds = [row.seconds for row in outcome.numbers.rounds] if outcome.numbers is not None else []
    shown = _each("communication ", times) or _each("", rounds)
    return f"{head}{shown}{duration(outcome.seconds)} in all; {left}"


def _each(what: str, seconds: Sequence[float | None]) -> str:
    known = sorted(value for value in seconds if value is not None)
    return f"{what}{format_seconds(known[len(known) // 2])} a round, " if known else ""


def tables(rows: Sequence[CellNumbers], axes: Sequence[str], accounting: str) -> list[Table]:
    """Return the two tables of a bench's cells: times, and costs (CPU, memory, bytes)."""
    times = _round_table if accounting == "round" else _time_table
    return [times(rows, axes), _cost_table(rows, axes, SYSTEMS_CAPTION if accounting == "round" else "")]


def _round_table(rows: Iterable[CellNumbers], axes: Sequence[str]) -> Table:
    """Return the times of cells of which whole rounds are compared."""
    made = _started(axes, ("runs", "round", "bound", "share", NAMES["measured"]), ROUND_CAPTION)
    for row in rows:
        round_median = middle(row.round_seconds)
        cells = [
            runs(row.repetitions, row.failed, row.incomplete_rounds) if row.repetitions else row.status,
            times(row.round_seconds),
            _part(row.bound_seconds, format_seconds),
            _part(divided(row.bound_seconds, round_median), lambda value: f"{100 * value:.0f} %"),
            _part(middle(row.communication_seconds), format_seconds),
        ]
        made.add_row(str(row.cell), _label(row), *cells)
    return made


def _time_table(rows: Iterable[CellNumbers], axes: Sequence[str]) -> Table:
    made = _started(axes, ("runs", *NAMES.values(), "round", "bound", "share"), CAPTION)
    for row in rows:
        cells = [
            runs(row.repetitions, row.failed, row.incomplete_rounds) if row.repetitions else row.status,
            times(row.communication_seconds),
            *(_part(middle(of), format_seconds) for of in (row.fedcomm_communication_seconds, row.round_seconds)),
            _part(row.bound_seconds, format_seconds),
            _part(row.share_of_bound, lambda value: f"{100 * value:.0f} %"),
        ]
        made.add_row(str(row.cell), _label(row), *cells)
    return made


def middle(of: Spread | None) -> float | None:
    """Return the median of a summary of times, or None without times."""
    return None if of is None else of.median


def runs(ended: int, failed: int, incomplete_rounds: int) -> str:
    """Return how many runs ended, how many failed, and how many of their rounds were incomplete."""
    counts = ((failed, "failed"), (incomplete_rounds, "rounds short"))
    return ", ".join([str(ended), *(f"{count} {word}" for count, word in counts if count)])


def _cost_table(rows: Sequence[CellNumbers], axes: Sequence[str], more: str = "") -> Table:
    kinds = ("server", "clients", "others") if any(row.cpu_seconds.others is not None for row in rows) else KINDS
    head = ["resent", "wire/update", *(f"CPU {kind}" for kind in kinds), *(f"mem {kind}" for kind in kinds)]
    caption = (
        "of a run, median over runs; resent: segments (of ltp: chunks) sent again by all parties of a run, - where not "
        "all are counted; wire/update: bytes of IP on the clients' links where they are emulated at packet level, else "
        "as the transport counts; mem: the most that one such party had resident"
    )
    made = _started(axes, head, caption + more)
    for row in rows:
        cells = [
            _part(row.retransmissions, lambda value: f"{value:.0f}"),
            _part(row.wire_ratio, lambda value: f"{value:.3f}"),
            *(_part(used, format_seconds) for used in _of_kinds(row.cpu_seconds)[: len(kinds)]),
            *(_part(used, format_bytes) for used in _of_kinds(row.peak_rss_bytes)[: len(kinds)]),
        ]
        made.add_row(str(row.cell), _label(row), *cells)
    return made


def _of_kinds(used: ByKind[float]) -> tuple[float | None, float | None, float | None]:
    return used.server, used.clients, used.others


def _started(axes: Iterable[str], head: Iterable[str], caption: str) -> Table:
    made = terminal.table("cell", caption=caption)
    # Settings may wrap; numbers may not.
    made.add_column(", ".join(axes), min_width=LABEL, overflow="fold")
    for heading in head:
        made.add_column(heading, justify="right", no_wrap=True)
    return made


def _label(row: CellNumbers) -> str:
    settings = ", ".join(row.settings.values()) or label({})
    return f"{settings} ({sender(row)})" if sender(row) else settings


def answer_lines(answers: Sequence[Answer]) -> list[str]:
    """Return a bench's answers, one line for each condition (at most ``MOST_ANSWERS``), and the notes on them."""
    lines = [
        f"{one.condition}: {one.verdict.sentence}" if one.condition else one.verdict.sentence
        for one in answers[:MOST_ANSWERS]
    ]
    rest = len(answers) - MOST_ANSWERS
    lines += [f"{rest} more answers are in bench.json"] if rest > 0 else []
    return [*lines, *(f"note: {note}" for note in dict.fromkeys(note for one in answers for note in one.notes))]


def times(of: Spread | None) -> str:
    """Return the median of times with the least and the most, as ``2.3 ms (1.1 to 3.0)``."""
    if of is None:
        return "-"
    factor, unit = next(scale for scale in SCALES if of.median * scale[0] >= 1 or scale is SCALES[-1])
    middle, least, most = (_short(value * factor) for value in (of.median, of.min, of.max))
    return f"{middle} {unit} ({least} to {most})"


def _short(value: float) -> str:
    """Return a number with three figures, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _part(value: float | None, form: Callable[[float], str]) -> str:
    return "-" if value is None else form(value)
