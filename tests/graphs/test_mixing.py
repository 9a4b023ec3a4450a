"""Mixing weights: rows always sum to 1, and columns if the rule promises it. Also the spectral gap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from numpy.testing import assert_allclose

from thalweg.graphs import mixing, schedule
from thalweg.graphs.mixing import RULES, Rule, effective, gap, metropolis

WORDS = ("ring", "3-regular", "star", "full", "torus", "small-world:4,0.3", "random:0.4", "exponential", "one-peer",
         "5-regular,dynamic")  # fmt: skip
# Graphs in which all exchanges are mutual.
MUTUAL = tuple(word for word in WORDS if word != "one-peer")
seeds = some.integers(0, 2**32)


def losses(seed: int, nodes: int, share: float, chunks: int = 7) -> Any:
    return np.random.default_rng(seed).random((nodes, nodes, chunks)) >= share


@given(some.sampled_from(WORDS), seeds, some.integers(1, 50))
def test_metropolis_is_doubly_stochastic(word: str, seed: int, iteration: int) -> None:
    exchange = schedule(word, 12, seed).at(iteration)
    weights = metropolis(exchange)
    assert (weights >= 0).all()
    assert (np.diag(weights) > 0).all()
    assert_allclose(weights.sum(axis=1), 1, atol=1e-12)
    assert_allclose(weights.sum(axis=0), 1, atol=1e-12)
    if exchange.is_mutual:
        assert_allclose(weights, weights.T)


@given(some.sampled_from(RULES), some.sampled_from(WORDS), seeds, some.floats(0, 1))
def test_rows_sum_to_one_whatever_is_lost(rule: Rule, word: str, seed: int, share: float) -> None:
    weights = effective(rule, schedule(word, 12, seed).at(1), losses(seed, 12, share))
    assert (weights >= -1e-15).all()
    assert_allclose(weights.sum(axis=1), 1, atol=1e-12)


@given(some.sampled_from(MUTUAL), seeds, some.floats(0, 1))
def test_symmetric_weights_keep_the_mean_under_any_loss(word: str, seed: int, share: float) -> None:
    weights = effective("symmetric", schedule(word, 12, seed).at(1), losses(seed, 12, share))
    assert_allclose(weights, weights.transpose(1, 0, 2))
    assert_allclose(weights.sum(axis=0), 1, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("word", MUTUAL)
def test_all_rules_are_metropolis_where_nothing_is_lost(rule: Rule, word: str) -> None:
    exchange = schedule(word, 12, 1).at(1)
    assert_allclose(effective(rule, exchange, losses(0, 12, 0))[:, :, 0], metropolis(exchange), atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_who_hears_nobody_keeps_its_model(rule: Rule) -> None:
    weights = effective(rule, schedule("ring", 5, 0).at(1), losses(0, 5, 1.1))
    assert (weights == np.eye(5)[:, :, np.newaxis]).all()


def test_the_papers_weight_counts_who_was_heard_and_not_who_is_there() -> None:
    # In a star the hub has degree 3. If it hears only one leaf, that leaf has the weight 1 / (1 + max(1, 1)).
    exchange = schedule("star", 4, 0).at(1)
    delivered = losses(0, 4, 0, chunks=1)
    delivered[0, 2:, 0] = False
    paper = effective("paper", exchange, delivered)[:, :, 0]
    assert_allclose(paper[0], [0.5, 0.5, 0, 0])
    assert_allclose(effective("metropolis", exchange, delivered)[0, :, 0], [0.75, 0.25, 0, 0])
    # The leaves use the hub's static degree, so columns do not sum to 1.
    assert_allclose(paper[1], [0.25, 0.75, 0, 0])
    assert paper.sum(axis=0)[0] == pytest.approx(1.25)


def test_the_own_chunk_stands_in_or_the_rest_is_scaled() -> None:
    exchange = schedule("ring", 3, 0).at(1)
    delivered = losses(0, 3, 0, chunks=2)
    delivered[0, 1, 1] = False
    assert_allclose(effective("metropolis", exchange, delivered)[0, :, 1], [2 / 3, 0, 1 / 3])
    assert_allclose(effective("renormalise", exchange, delivered)[0, :, 1], [1 / 2, 0, 1 / 2])
    # Node 1 does not use those bytes of node 0 whose counterparts node 0 did not receive from node 1.
    assert_allclose(effective("symmetric", exchange, delivered)[1, :, 1], [0, 2 / 3, 1 / 3])


@pytest.mark.parametrize(
    ("word", "nodes", "expected"),
    [
        ("full", 10, 1.0),
        # A ring with weights of a third: 1 - (1 + 2 cos(2 pi / n)) / 3.
        ("ring", 12, 1 - (1 + 2 * np.cos(2 * np.pi / 12)) / 3),
        # If n is a power of two, all nodes have the mean of all models after log2(n) iterations.
        ("one-peer", 16, 1.0),
    ],
)
def test_the_gap_of_known_graphs(word: str, nodes: int, expected: float) -> None:
    assert gap(schedule(word, nodes, 0)) == pytest.approx(expected, abs=1e-12)


def test_the_gap_grows_with_the_degree_and_with_change() -> None:
    static, dense, dynamic = (gap(schedule(word, 16, 0)) for word in ("3-regular", "7-regular", "3-regular,dynamic"))
    assert static is not None
    assert dense is not None
    assert dynamic is not None
    assert 0 < static < dense < 1
    assert static < dynamic < 1


def test_the_gap_of_many_nodes_is_left_out() -> None:
    assert gap(schedule("ring", mixing.MOST_NODES + 1, 0)) is None
