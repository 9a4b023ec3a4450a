"""DecentralizePy's edge files: a line with the number of nodes, then a line ``a b`` an edge, nodes from 0.

DecentralizePy writes each edge twice, once in each direction. A file that has each edge only once is accepted too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from thalweg.errors import PlanError
from thalweg.graphs.graph import Graph

LARGEST_FILE: Final = 64 << 20


def read(path: Path, nodes: int) -> Graph:
    """Read a connected graph of ``nodes`` nodes.

    Raises PlanError, which names the line, for a loop, an edge that is twice there in one direction, an unknown node,
    another number of nodes, or a graph that is not connected.
    """
    lines = _lines(path)
    first = lines[0].strip() if lines else ""
    if not (first.isascii() and first.isdecimal()):
        raise PlanError(
            f"line 1 of {path} is {first[:80]!r}, not a number of nodes",
            "Begin with the number of nodes, then give an edge a line, as: 0 1",
        )
    if int(first) != nodes:
        raise PlanError(f"{path} has {int(first)} nodes where job.clients is {nodes}", f"Give --clients {int(first)}")
    lines_of_edges: dict[tuple[int, int], int] = {}
    for number, line in enumerate(lines[1:], 2):
        if line.strip():
            edge = _edge(f"line {number} of {path}", line, nodes)
            if edge in lines_of_edges:
                raise PlanError(
                    f"line {number} of {path} repeats the edge {edge[0]} {edge[1]} of line {lines_of_edges[edge]}",
                    "Remove one of them; an edge stands once, or once in each direction",
                )
            lines_of_edges[edge] = number
    graph = Graph.of(nodes, lines_of_edges)
    _check_whole(path, graph, lines_of_edges)
    return graph


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        raise PlanError(f"cannot read the graph {path}: {error.strerror}", "Give the path of an edge file") from error
    if len(content) > LARGEST_FILE:
        raise PlanError(f"{path} has more than {LARGEST_FILE} bytes", "Give the path of an edge file")
    try:
        return content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise PlanError(f"{path} is not text in UTF-8", "Give the path of an edge file") from error


def _edge(place: str, line: str, nodes: int) -> tuple[int, int]:
    words = line.split()
    if len(words) != 2 or not all(word.isascii() and word.isdecimal() for word in words):
        raise PlanError(f"{place} is {line.strip()[:80]!r}, not an edge", "Write two nodes, as: 0 1")
    for word in words:
        if int(word) >= nodes:
            raise PlanError(f"{place} names node {word[:20]}, of {nodes} nodes", f"Nodes count from 0 to {nodes - 1}")
    a, b = map(int, words)
    if a == b:
        raise PlanError(f"{place} is a loop: it joins node {a} with itself", "Remove it; a node has its own model")
    return a, b


def _check_whole(path: Path, graph: Graph, lines: dict[tuple[int, int], int]) -> None:
    """Raise PlanError if the graph has several parts. It names the first line whose edge is not in node 0's part."""
    here = graph.reached()
    if len(here) == graph.nodes:
        return
    other = next(((edge, line) for edge, line in lines.items() if edge[0] not in here), None)
    lonely = min(node for node in range(graph.nodes) if node not in here)
    where = f"node {lonely} has no edge" if other is None else f"line {other[1]} is of another part than node 0"
    node = lonely if other is None else other[0][0]
    raise PlanError(
        f"the graph of {path} has several parts, which would never learn from each other: {where}",
        f"Add an edge that joins them, as: 0 {node}",
    )
