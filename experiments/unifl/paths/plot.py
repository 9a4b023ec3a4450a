"""A group of bars for each path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.measured import Cell
from experiments.plots import GOODPUT, bars


def plot(cells: Sequence[Cell], title: str, file: Path) -> list[Path]:
    """Draw the figure of one mode."""
    return bars(cells, title, file, groups="network", panels=None, shown=GOODPUT)
