"""What all benchmarks share: repetitions, medians, worker processes, results."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MIB = 1 << 20
FOLDER = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Spread:
    """Median and range of one measurement's repetitions."""

    median: float
    least: float
    most: float
    repetitions: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values), len(values))

    def text(self, scale: float = 1.0, digits: int = 1) -> str:
        """Return median and range, times ``scale``."""
        low, middle, high = (f"{value * scale:.{digits}f}" for value in (self.least, self.median, self.most))
        return f"{middle} ({low}..{high})"


@dataclass
class Figure:
    """One line of the table: the measured value, its limit, and whether it keeps the limit (None without a limit)."""

    name: str
    value: str
    limit: str
    reached: bool | None
    details: dict[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        return asdict(self)


@contextmanager
def workers(commands: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start ``python -m benches.worker`` once for each list of arguments, and end these processes afterwards."""
    started = [subprocess.Popen([sys.executable, "-m", "benches.worker", *c], cwd=FOLDER) for c in commands]
    try:
        yield started
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def note(text: str) -> None:
    """Print progress on standard error."""
    print(text, file=sys.stderr, flush=True)
