"""Generates graphs by name. networkx draws random ones, which depend on the seed and on networkx's release."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from math import isqrt
from pathlib import Path
from typing import Any, Final

from thalweg import extras
from thalweg.errors import PlanError
from thalweg.graphs import edges
from thalweg.graphs.graph import Graph
from thalweg.graphs.words import DRAWN, Word

# Maximum number of edges. Making a graph of this size takes some hundred megabytes.
MOST_EDGES: Final = 1_000_000
# Maximum number of draws in search of a connected graph. About every fourth 2-regular graph of 100 nodes is connected.
DRAWS: Final = 1_000


def make(word: Word, nodes: int, seed: int, draw: int = 0) -> Graph:
    """Return the connected graph of this name with ``nodes`` nodes.

    ``draw`` numbers the graphs that are drawn from one seed. Raises PlanError for an impossible graph, and PackageError
    for a random one without networkx.
    """
    check(word, nodes)
    if word.kind == "file":
        return edges.read(Path(word.path or ""), nodes)
    if word.kind in DRAWN:
        extras.require(f"the graph {word.text}", "networkx")
    for state in _states(seed, draw):
        graph = _MAKERS[word.kind](word, nodes, state)
        if graph.is_connected:
            return graph
    raise PlanError(
        f"none of {DRAWS} graphs {word.text} of {nodes} nodes was connected", "Take a larger K or P, or fewer nodes"
    )


def check(word: Word, nodes: int) -> None:
    """Raise PlanError for a graph that cannot have this number of nodes, before anything is drawn."""
    if nodes < 2:
        raise PlanError(f"a graph of {nodes} node has nobody to exchange with", "Give at least two nodes")
    if word.kind in _CHECKS:
        _CHECKS[word.kind](word, nodes)
    # In a graph that changes, each node is linked with all nodes that can become its neighbours.
    most = nodes * (nodes - 1) / 2 if word.dynamic else expected_edges(word, nodes)
    if most > MOST_EDGES:
        raise PlanError(
            f"the graph {word.text} of {nodes} nodes has some {most:,.0f} edges, over {MOST_EDGES:,}",
            "Take fewer nodes, or a graph with fewer edges as 3-regular",
        )


def expected_edges(word: Word, nodes: int) -> float:
    """Return about how many edges the graph will have."""
    pairs = nodes * (nodes - 1) / 2
    if word.kind == "full":
        return pairs
    if word.kind == "random":
        return pairs * word.probability
    return nodes * (word.degree or nodes.bit_length()) / 2


def offsets(nodes: int) -> list[int]:
    """Return the powers of two below ``nodes``. In an exponential graph, nodes at these distances are linked."""
    return [1 << power for power in range((nodes - 1).bit_length())]


def _states(seed: int, draw: int) -> Iterator[int]:
    import numpy as np

    for attempt in range(DRAWS):
        yield int(np.random.SeedSequence((seed, draw, attempt)).generate_state(1)[0])


def _graph(made: Any) -> Graph:
    return Graph.of(made.number_of_nodes(), made.edges)


def _ring(_word: Word, nodes: int, _state: int) -> Graph:
    return _circulant(nodes, [1])


def _circulant(nodes: int, distances: Sequence[int]) -> Graph:
    """Return the graph in which each node is linked with those at these distances along a ring."""
    return Graph.of(nodes, ((node, (node + by) % nodes) for node in range(nodes) for by in distances))


def _regular(word: Word, nodes: int, state: int) -> Graph:
    import networkx

    return _graph(networkx.random_regular_graph(word.degree, nodes, seed=state))


def _check_regular(word: Word, nodes: int) -> None:
    degree = word.degree
    if not 1 <= degree < nodes:
        raise PlanError(
            f"a graph of {nodes} nodes cannot be {degree}-regular", f"Take 1-regular to {nodes - 1}-regular"
        )
    if degree * nodes % 2:
        raise PlanError(
            f"a graph of {nodes} nodes cannot be {degree}-regular: half of {nodes} times {degree} is no whole number",
            f"Take {degree + 1}-regular, or an even number of clients",
        )
    if degree == 1 and nodes > 2:
        raise PlanError(f"a 1-regular graph of {nodes} nodes falls into pairs", "Take 2-regular or more")


def _sides(nodes: int) -> tuple[int, int]:
    """Return the numbers of rows and columns of the torus that is nearest to a square."""
    rows = next(side for side in range(isqrt(nodes), 0, -1) if nodes % side == 0)
    return rows, nodes // rows


def _torus(_word: Word, nodes: int, _state: int) -> Graph:
    rows, columns = _sides(nodes)
    right = ((row * columns + at, row * columns + (at + 1) % columns) for row in range(rows) for at in range(columns))
    down = ((node, (node + columns) % nodes) for node in range(nodes))
    return Graph.of(nodes, (edge for edge in chain(right, down) if edge[0] != edge[1]))


def _check_torus(_word: Word, nodes: int) -> None:
    if _sides(nodes)[0] < 2:
        raise PlanError(
            f"{nodes} nodes make no torus: {nodes} is no product of two numbers above 1",
            f"Take ring, or another number of clients as {max(4, nodes + nodes % 2)}",
        )


def _star(_word: Word, nodes: int, _state: int) -> Graph:
    return Graph.of(nodes, ((0, node) for node in range(1, nodes)))


def _full(_word: Word, nodes: int, _state: int) -> Graph:
    return Graph.of(nodes, combinations(range(nodes), 2))


def _small_world(word: Word, nodes: int, state: int) -> Graph:
    import networkx

    return _graph(networkx.watts_strogatz_graph(nodes, word.degree, word.probability, seed=state))


def _check_small_world(word: Word, nodes: int) -> None:
    if not 2 <= word.degree < nodes or word.degree % 2:
        most = (nodes - 1) // 2 * 2
        raise PlanError(
            f"the graph {word.text} of {nodes} nodes has K = {word.degree}",
            f"Give an even K from 2 to {most}: each node is first joined with its K nearest on a ring"
            if most
            else "Take ring",
        )


def _random(word: Word, nodes: int, state: int) -> Graph:
    import networkx

    return _graph(networkx.gnp_random_graph(nodes, word.probability, seed=state))


def _exponential(_word: Word, nodes: int, _state: int) -> Graph:
    return _circulant(nodes, offsets(nodes))


_MAKERS: Final[Mapping[str, Callable[[Word, int, int], Graph]]] = {
    "ring": _ring,
    "regular": _regular,
    "torus": _torus,
    "star": _star,
    "full": _full,
    "small-world": _small_world,
    "random": _random,
    "exponential": _exponential,
    "one-peer": _exponential,
}
_CHECKS: Final[Mapping[str, Callable[[Word, int], None]]] = {
    "regular": _check_regular,
    "torus": _check_torus,
    "small-world": _check_small_world,
}
