"""UniFL figure 7: what a sender has under way over time, by what controls it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.measured import Cell
from experiments.plots import timelines


def plot(cells: Sequence[Cell], title: str, file: Path) -> list[Path]:
    """Draw the figure of one mode."""
    return timelines(cells, title, file)
