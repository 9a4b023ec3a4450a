"""UniFL figure 9: a line for each receiver and congestion control, over loss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.measured import Cell
from experiments.plots import lines


def plot(cells: Sequence[Cell], title: str, file: Path) -> list[Path]:
    """Draw the figure of one mode."""
    return lines(cells, title, file, along="network.up.loss")
