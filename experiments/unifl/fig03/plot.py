"""UniFL figure 3: goodput of the masked sender and of the others, by what controls it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.measured import Cell
from experiments.plots import flows


def plot(cells: Sequence[Cell], title: str, file: Path) -> list[Path]:
    """Draw the figure of one mode."""
    return flows(cells, title, file)
