"""An undirected graph without loops and double edges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Graph:
    """Nodes 0 to ``nodes`` - 1, and edges (a, b) with a < b, in order."""

    nodes: int
    edges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, nodes: int, edges: Iterable[tuple[int, int]]) -> Graph:
        """Return the graph with these edges, given in any direction and order; an edge given twice counts once."""
        return cls(nodes, tuple(sorted({(min(edge), max(edge)) for edge in edges})))

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Each node's neighbours, in order."""
        by_node: list[list[int]] = [[] for _ in range(self.nodes)]
        for a, b in self.edges:
            by_node[a].append(b)
            by_node[b].append(a)
        return tuple(tuple(sorted(of)) for of in by_node)

    @property
    def degrees(self) -> tuple[int, ...]:
        """The number of neighbours of each node."""
        return tuple(len(of) for of in self.neighbours)

    def reached(self, start: int = 0) -> set[int]:
        """Return the nodes to which a path leads from ``start``, including ``start``."""
        seen, waiting = {start}, [start]
        while waiting:
            fresh = [node for node in self.neighbours[waiting.pop()] if node not in seen]
            seen.update(fresh)
            waiting += fresh
        return seen

    @property
    def is_connected(self) -> bool:
        """Whether a path leads from any node to any other."""
        return len(self.reached()) == self.nodes
