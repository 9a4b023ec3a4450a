"""A group of bars for each place of the limiter, a panel for each way to serve clients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.measured import Cell
from experiments.plots import bars


def plot(cells: Sequence[Cell], title: str, file: Path) -> list[Path]:
    """Draw the figure of one mode."""
    gather = cells[-1].labels["gather"]
    alike = [cell for cell in cells if cell.labels["gather"] == gather]
    return bars(alike, f"{title}, gather {gather}", file, groups="network", panels="fanout")
