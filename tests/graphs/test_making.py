"""Generated graphs: their structure, their dependence on the seed, and refused parameters."""

from __future__ import annotations

from typing import Any

import networkx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

from thalweg.errors import PlanError
from thalweg.graphs import Graph, parse, schedule
from thalweg.graphs.making import expected_edges, make

FIXED = ("ring", "star", "full", "exponential", "one-peer")


@given(some.sampled_from(FIXED), some.integers(2, 40))
def test_graphs_that_follow_from_their_word_are_connected(word: str, nodes: int) -> None:
    graph = make(parse(word), nodes, 0)
    assert graph.nodes == nodes
    assert graph.is_connected
    assert all(a < b for a, b in graph.edges)
    assert graph == make(parse(word), nodes, 1)


@given(some.integers(1, 9), some.integers(2, 30), some.integers(0, 2**40))
def test_a_regular_graph_is_regular_and_connected(degree: int, nodes: int, seed: int) -> None:
    assume(degree < nodes and degree * nodes % 2 == 0 and (degree > 1 or nodes == 2))
    graph = make(parse(f"{degree}-regular"), nodes, seed)
    assert set(graph.degrees) == {degree}
    assert graph.is_connected
    assert graph == make(parse(f"{degree}-regular"), nodes, seed)


@given(some.integers(1, 4), some.integers(9, 30), some.floats(0, 1), some.integers(0, 99))
def test_a_small_world_keeps_its_number_of_edges(half: int, nodes: int, chance: float, seed: int) -> None:
    graph = make(parse(f"small-world:{2 * half},{chance:.3f}"), nodes, seed)
    assert len(graph.edges) == half * nodes
    assert graph.is_connected


def test_another_seed_draws_another_graph() -> None:
    for word in ("3-regular", "small-world:4,0.5", "random:0.4"):
        assert len({make(parse(word), 16, seed) for seed in range(4)}) == 4


@pytest.mark.parametrize(
    ("word", "nodes", "degrees"),
    [
        ("ring", 5, [2] * 5),
        ("ring", 2, [1, 1]),
        ("torus", 16, [4] * 16),
        ("torus", 6, [3] * 6),
        ("star", 5, [4, 1, 1, 1, 1]),
        ("full", 4, [3] * 4),
        # Edges span powers of two in both directions. The node at half the ring is the same in both.
        ("exponential", 8, [5] * 8),
        ("random:1", 4, [3] * 4),
    ],
)
def test_degrees(word: str, nodes: int, degrees: list[int]) -> None:
    assert list(make(parse(word), nodes, 0).degrees) == degrees


@pytest.mark.parametrize(
    ("word", "nodes", "cause", "hint"),
    [
        ("ring", 1, "nobody to exchange with", "at least two nodes"),
        ("3-regular", 3, "cannot be 3-regular", "1-regular to 2-regular"),
        ("3-regular", 5, "no whole number", "Take 4-regular, or an even number of clients"),
        ("1-regular", 4, "falls into pairs", "2-regular or more"),
        ("0-regular", 4, "cannot be 0-regular", "1-regular"),
        ("torus", 13, "no torus", "as 14"),
        ("torus", 2, "no torus", "as 4"),
        ("small-world:3,0.1", 16, "K = 3", "an even K from 2 to 14"),
        ("small-world:2,0.1", 2, "K = 2", "Take ring"),
        ("random:0.001", 50, "none of 1000 graphs", "larger K or P"),
        ("full", 2_000, "1,999,000 edges, over 1,000,000", "fewer nodes"),
    ],
)
def test_what_cannot_be_is_refused(word: str, nodes: int, cause: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        make(parse(word), nodes, 0)
    assert cause in caught.value.cause
    assert hint in caught.value.hint


def test_edges_that_are_expected() -> None:
    assert expected_edges(parse("full"), 5) == 10
    assert expected_edges(parse("3-regular"), 16) == len(make(parse("3-regular"), 16, 0).edges)


def test_parts_of_a_graph() -> None:
    graph = Graph.of(4, [(1, 0), (0, 1), (3, 2)])
    assert graph.edges == ((0, 1), (2, 3))
    assert graph.reached(2) == {2, 3}
    assert not graph.is_connected


def test_a_static_graph_has_one_exchange() -> None:
    ring = schedule("ring", 6, 0)
    assert ring.at(1) is ring.at(1_000)
    assert ring.at(1).hears == ring.at(1).sends
    assert ring.period == 1


@given(some.integers(2, 33), some.integers(1, 2**32 - 1))
def test_one_peer_sends_one_model_and_hears_one(nodes: int, iteration: int) -> None:
    made = schedule("one-peer", nodes, 0)
    exchange = made.at(iteration)
    assert all(len(targets) == 1 for targets in exchange.sends)
    assert all(len(sources) == 1 for sources in exchange.hears)
    assert made.period is not None
    assert exchange == made.at(iteration + made.period)
    edges = {(min(a, b[0]), max(a, b[0])) for a, b in enumerate(exchange.sends)}
    assert edges <= set(made.links.edges)


def test_a_dynamic_graph_is_drawn_anew_each_iteration_and_the_same_for_all() -> None:
    mine, theirs = (schedule("3-regular,dynamic", 10, 5) for _ in range(2))
    assert len({mine.at(iteration) for iteration in range(1, 21)}) > 10
    # The exchanges do not depend on the order in which they are asked for.
    assert [mine.at(i) for i in range(1, 21)] == [theirs.at(i) for i in range(20, 0, -1)][::-1]
    assert all(len(sources) == 3 for sources in mine.at(7).hears)
    assert mine.at(7).is_mutual
    assert len(mine.links.edges) == 45
    assert mine.period is None


@pytest.mark.parametrize("nodes", range(3, 40))
def test_graphs_made_without_networkx_are_those_of_networkx(nodes: int) -> None:
    others = {
        "ring": networkx.cycle_graph(nodes),
        "star": networkx.star_graph(nodes - 1),
        "full": networkx.complete_graph(nodes),
        "exponential": networkx.circulant_graph(nodes, [2**power for power in range((nodes - 1).bit_length())]),
    }
    for word, graph in others.items():
        assert edges_of(make(parse(word), nodes, 0)) == edges_of(graph), word


@pytest.mark.parametrize(("nodes", "rows"), [(4, 2), (6, 2), (9, 3), (12, 3), (16, 4), (35, 5)])
def test_a_torus_is_that_of_networkx(nodes: int, rows: int) -> None:
    columns = nodes // rows
    grid = networkx.grid_2d_graph(rows, columns, periodic=True)
    numbered = networkx.relabel_nodes(grid, {(row, at): row * columns + at for row, at in grid})
    assert edges_of(make(parse("torus"), nodes, 0)) == edges_of(numbered)


def edges_of(graph: Any) -> set[frozenset[int]]:
    return {frozenset(edge) for edge in graph.edges}
