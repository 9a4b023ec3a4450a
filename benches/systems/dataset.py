"""The data set of the table: a file of JSON lines, one for each run of a cell. An interrupted measurement can go on."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benches.common import Spread
from benches.systems.cell import Cell, Outcome
from benches.systems.paths import PATHS, bound

FILE: Final = Path(__file__).parent / "results" / "table.jsonl"
#: A machine counts as quiet if all other programs together use at most this share of one core.
QUIET: Final = 0.1


@dataclass(frozen=True)
class Line:
    """One run: the cell, its turn, when it began, the load average then, the version that ran, and the result.

    ``others``: how many cores other programs used in the second before the run. The load average cannot tell that,
    because it includes the systems that were measured just before.
    """

    cell: Cell
    turn: int
    time: str
    load: float
    machine: dict[str, Any]
    version: str
    debug: bool
    outcome: Outcome
    #: The parties' niceness (nice(2), 0 to 19), and the congestion control of their hosts.
    nice: int = 0
    congestion: str | None = None
    others: float | None = None

    @property
    def busy(self) -> bool:
        """Whether the machine was busy with other programs. It counts as busy if that was not measured."""
        return self.others is None or self.others > QUIET or self.nice > 0


def line_of(text: str) -> Line:
    table = json.loads(text)
    return Line(**{**table, "cell": Cell(**table["cell"]), "outcome": Outcome(**table["outcome"])})


def read(path: Path = FILE) -> list[Line]:
    """Return the lines of a data set, without a last line that is incomplete because its run was interrupted."""
    text = path.read_text() if path.exists() else ""
    return [line_of(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def append(path: Path, line: Line) -> None:
    """Add a run to a data set. It is on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = "".join(part for part in path.read_text().splitlines(keepends=True) if part.endswith("\n")) if (
        path.exists()
    ) else ""  # fmt: skip
    if path.exists() and whole != path.read_text():
        path.write_text(whole)
    with path.open("a") as file:
        file.write(json.dumps(asdict(line)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime())


@dataclass(frozen=True)
class Row:
    """The summary of all runs of a cell."""

    cell: Cell
    lines: tuple[Line, ...]

    @property
    def seconds(self) -> Spread | None:
        """The seconds of all rounds that count, or None if no round does."""
        values = [value for line in self.lines for value in line.outcome.seconds]
        return Spread.of(values) if values else None

    @property
    def failures(self) -> list[str]:
        return [line.outcome.failure for line in self.lines if line.outcome.failure is not None]

    @property
    def usable(self) -> bool:
        """Whether the cell can be compared: all its runs have succeeded."""
        return self.seconds is not None and not self.failures

    @property
    def bound(self) -> float | None:
        return bound(PATHS[self.cell.path], self.cell.work, self.cell.parties, self.cell.size)

    @property
    def busy(self) -> bool:
        return any(line.busy for line in self.lines)

    def mean(self, name: str) -> float | None:
        """Return the mean over the runs of the outcome's number ``name``."""
        values = [value for line in self.lines if (value := getattr(line.outcome, name)) is not None]
        return sum(values) / len(values) if values else None

    def peak(self, *, server: bool) -> int | None:
        """Return the peak memory of the server, or the largest one of the clients."""
        peaks = [
            value
            for line in self.lines
            for name, value in line.outcome.peak_bytes.items()
            if (name == "server") is server
        ]
        return max(peaks, default=None)

    def cpu(self) -> float | None:
        """Return the mean CPU seconds of a round, all parties together."""
        sums = [sum(line.outcome.cpu_seconds.values()) for line in self.lines if line.outcome.cpu_seconds]
        return sum(sums) / len(sums) if sums else None


def rows(lines: Iterable[Line]) -> list[Row]:
    """Return a row for each cell, in the order in which they were first measured."""
    groups: dict[Cell, list[Line]] = defaultdict(list)
    for line in lines:
        groups[line.cell].append(line)
    return [Row(cell, tuple(of)) for cell, of in groups.items()]
