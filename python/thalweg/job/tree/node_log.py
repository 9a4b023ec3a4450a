"""Bounds how many lines of each node's log the root of a tree keeps in a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from thalweg.job.tree.known import Node

# Maximum number of lines of a node's log that are kept in a round: for the node, and for each of its clients.
MOST_LINES: Final = 64
LINES_OF_A_CLIENT: Final = 4


class NodeLog:
    """Counts the lines that each node has sent since the round began."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}

    def begin(self) -> None:
        """Begin a round: forget how many lines nodes have sent."""
        self._lines.clear()

    def lines(self, node: Node, notes: Sequence[str]) -> list[str]:
        """Return the lines of a node's log that the root keeps. When the limit is passed, one line says so."""
        most = MOST_LINES + LINES_OF_A_CLIENT * max(node.expected, len(node.clients))
        before = self._lines.get(node.name, 0)
        self._lines[node.name] = before + len(notes)
        kept = [f"{node.name}: {note}" for note in notes[: max(0, most - before)]]
        if before <= most < before + len(notes):
            kept.append(f"more of {node.name} is left out until the next round")
        return kept
