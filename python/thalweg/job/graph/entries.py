"""Joins the nodes' lines into the record's entries: one for each iteration, once all nodes have finished it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from thalweg.job.graph.lines import Finished
from thalweg.outcome import Entry
from thalweg.record.nodes import entry


class Collector:
    """Keeps the nodes' lines of each iteration until all working nodes have finished it.

    Its memory grows with the distance between the fastest and the slowest node.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._expected = len(names)
        # The last iteration that each working node has finished.
        self._reached = dict.fromkeys(names, 0)
        self._waiting: dict[int, dict[str, Finished]] = {}

    def add(self, node: str, line: Finished) -> Iterator[Entry]:
        """Take a node's line; yield the entries of iterations that all working nodes have finished, in order."""
        self._waiting.setdefault(line.number, {})[node] = line
        if node in self._reached:
            self._reached[node] = line.number
        yield from self._finished()

    def remove(self, node: str) -> Iterator[Entry]:
        """Stop waiting for a node that is done or lost. Yield entries as ``add`` does."""
        self._reached.pop(node, None)
        yield from self._finished()

    @property
    def working(self) -> list[str]:
        """The nodes that are neither done nor lost."""
        return list(self._reached)

    def _finished(self) -> Iterator[Entry]:
        least = min(self._reached.values(), default=None)
        for number in sorted(self._waiting):
            if least is not None and number > least:
                return
            lines = {node: line.table() for node, line in self._waiting.pop(number).items()}
            yield entry(number, lines, self._expected)
