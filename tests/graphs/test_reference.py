"""D-PSGD in NumPy: the mean moves as the rule for losses says, models converge, and sketches measure both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from numpy.testing import assert_allclose

from thalweg.graphs import measures, mixing, reference, schedule


def lossy(seed: int, nodes: int, chunks: int, share: float) -> Callable[[int], Any]:
    return lambda iteration: np.random.default_rng((seed, iteration)).random((nodes, nodes, chunks)) >= share


def models(nodes: int = 16, chunks: int = 400) -> Any:
    return np.random.default_rng(1).standard_normal((nodes, chunks, 1))


def last(rule: mixing.Rule, share: float, iterations: int = 20) -> reference.Step:
    *_, step = reference.dpsgd(
        models(), schedule("3-regular", 16, 0), iterations=iterations, rule=rule, delivered=lossy(0, 16, 400, share)
    )
    return step


@pytest.mark.parametrize("rule", mixing.RULES)
def test_without_loss_the_mean_stays_and_models_come_together(rule: mixing.Rule) -> None:
    steps = list(reference.dpsgd(models(), schedule("3-regular", 16, 0), iterations=50, rule=rule))
    assert_allclose(steps[-1].models.mean(axis=0), models().mean(axis=0), atol=1e-12)
    apart = [step.disagreement for step in steps]
    assert apart == sorted(apart, reverse=True)
    gap = mixing.gap(schedule("3-regular", 16, 0))
    assert gap is not None
    assert apart[-1] <= apart[0] * (1 - gap) ** 49 * 1.001
    assert {step.used for step in steps} == {1.0}


def test_only_symmetric_weights_keep_the_mean_under_loss() -> None:
    moved = {rule: np.linalg.norm(last(rule, 0.2).models.mean(axis=0) - models().mean(axis=0)) for rule in mixing.RULES}
    assert moved["symmetric"] < 1e-12
    assert min(moved["metropolis"], moved["renormalise"], moved["paper"]) > 0.1
    # On a regular graph without losses, the paper's weights equal the static weights.
    assert moved["paper"] == moved["metropolis"]


def test_the_share_used_is_that_which_arrived_and_both_ways_for_symmetric() -> None:
    assert last("metropolis", 0.2).used == pytest.approx(0.8, abs=0.02)
    assert last("symmetric", 0.2).used == pytest.approx(0.64, abs=0.02)


def test_nodes_that_train_towards_their_own_goals_meet_at_the_mean_of_goals() -> None:
    goals = np.arange(8.0).reshape(8, 1, 1)
    step_size = 0.02

    def train(_iteration: int, now: Any) -> Any:
        return now - step_size * (now - goals)

    *_, step = reference.dpsgd(np.zeros((8, 1, 1)), schedule("full", 8, 0), iterations=400, train=train)
    assert_allclose(step.models, goals.mean(), atol=0.01)


@given(some.integers(0, 2**40), some.integers(1, 200_000))
def test_a_sketch_is_linear_and_has_about_the_norm(seed: int, size: int) -> None:
    random = np.random.default_rng(seed)
    one, other = (random.standard_normal(size).astype(np.float32) for _ in range(2))
    sketched = measures.sketch([one], seed)
    assert sketched.shape == (measures.PLACES,)
    assert_allclose(measures.sketch([one], seed), sketched)
    total = one.astype(np.float64) + other
    assert_allclose(sketched + measures.sketch([other], seed), measures.sketch([total], seed), atol=1e-3)
    # Six standard deviations of a sum of 64 squares. A model with fewer than 64 values keeps its norm exactly.
    assert np.sum(sketched**2) == pytest.approx(float(np.sum(one.astype(np.float64) ** 2)), rel=6 * np.sqrt(2 / 64))


def test_the_parts_of_a_model_are_sketched_with_signs_of_their_own() -> None:
    values = np.ones(10, dtype=np.float32)
    both = measures.sketch([values, values], 3)
    assert_allclose(np.abs(measures.sketch([values], 3)[:10]), 1)
    assert set(np.abs(both[:10])) == {0.0, 2.0}


def test_sketches_tell_drift_and_disagreement_of_models() -> None:
    random = np.random.default_rng(0)
    mean = random.standard_normal(20_000)
    before = mean + 0.1 * random.standard_normal((16, 20_000))
    after = 1.02 * mean + 0.05 * random.standard_normal((16, 20_000))
    small = [np.stack([measures.sketch([model], 5) for model in group]) for group in (before, after)]
    assert measures.drift(*small) == pytest.approx(measures.drift(before, after), rel=0.5)
    assert measures.disagreement(small[1]) == pytest.approx(measures.disagreement(after), rel=0.3)
    assert measures.disagreement(np.ones((4, 3))) == 0
    assert measures.drift(np.zeros((2, 3)), np.zeros((2, 3))) == 0
    assert measures.drift(np.zeros((2, 3)), np.ones((2, 3))) == float("inf")


def test_only_floats_are_sketched() -> None:
    tensors: dict[str, Any] = {"w": np.ones(3, np.float32), "count": np.ones(1, np.int64)}
    assert [array.dtype for array in measures.floats(tensors, {"w": "F32", "count": "I64"})] == [np.float32]
