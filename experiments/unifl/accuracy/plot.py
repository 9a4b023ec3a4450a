"""The accuracy after each round, with and without loss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.measured import Cell
from experiments.plots import accuracy


def plot(cells: Sequence[Cell], title: str, file: Path) -> list[Path]:
    """Draw the figure of one mode."""
    return accuracy(cells, title, file, panels="network.up.loss")
