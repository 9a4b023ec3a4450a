"""Comparing runs: which differences are significant, and which are not."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.ui.comparing import (
    ALPHA,
    MOST_DEALS,
    Comparison,
    center,
    chance_of,
    compare,
    fewest_to_prove,
    interval,
    needed_runs,
    pairs_of,
    student,
)
from thalweg.ui.verdict import verdict

Times = st.floats(0.001, 1000.0, allow_nan=False, allow_infinity=False)


def proven(one: list[float], other: list[float], pairs: int = 1) -> bool:
    best, second = sorted((one, other), key=center)
    comparison = compare(best, second, pairs)
    return comparison.relation == "slower" and comparison.sure == "yes"


@settings(max_examples=60, deadline=None)
@given(st.lists(Times, min_size=4, max_size=9), st.data())
def test_runs_of_the_same_are_seldom_called_different(values: list[float], data: st.DataObject) -> None:
    """Divide the same runs between two names in all possible ways: at most 5 % of the divisions prove a difference."""
    count = data.draw(st.integers(2, len(values) - 2))
    deals = list(itertools.combinations(range(len(values)), count))
    wrong = 0
    for deal in deals:
        wrong += proven([values[at] for at in deal], [values[at] for at in range(len(values)) if at not in deal])
    assert wrong <= ALPHA * len(deals)


@settings(max_examples=10, deadline=None)
@given(st.integers(2, 5), st.integers(0, 1000))
def test_several_of_the_same_are_seldom_called_different(transports: int, seed: int) -> None:
    """The least p-value of all pairs, times the number of pairs, is below 5 % in at most 5 % of the draws."""
    rng = random.Random(seed)
    runs, draws = fewest_to_prove(pairs_of(transports)), 40
    wrong = 0
    for _ in range(draws):
        values = {str(at): [rng.lognormvariate(0, 0.5) for _ in range(runs)] for at in range(transports)}
        wrong += any(one.relation == "slower" and one.sure == "yes" for one in verdict(values).compared.values())
    # With an error probability of 5 %, 9 or more of 40 draws are wrong with a probability of 0.03 %.
    assert wrong < 9


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = random.Random(1)
    held = 0
    for _ in range(400):
        best, other = ([rng.lognormvariate(middle, 0.3) for _ in range(4)] for middle in (0.0, 1.0))
        low, high = interval(best, other) or (math.inf, 0.0)
        held += low <= math.e <= high
    assert 0.92 <= held / 400 <= 0.98


@settings(max_examples=100, deadline=None)
@given(st.lists(Times, min_size=2, max_size=2), st.lists(Times, min_size=2, max_size=2))
def test_two_runs_prove_nothing_but_say_how_much(best: list[float], other: list[float]) -> None:
    best, other = sorted((best, other), key=center)
    comparison = compare(best, other)
    assert comparison.sure in ("no", "fairly")
    assert comparison.factor == pytest.approx(center(other) / center(best))
    assert comparison.low is not None
    assert comparison.high is not None
    assert comparison.low <= comparison.factor * (1 + 1e-9)
    assert comparison.factor <= comparison.high * (1 + 1e-9)
    assert comparison.needed is None or comparison.needed >= 4


def test_the_runs_that_are_said_to_be_needed_are_enough() -> None:
    rng = random.Random(7)
    best, other = ([middle * rng.lognormvariate(0, 0.1) for _ in range(3)] for middle in (1.0, 1.4))
    needed = needed_runs(best, other)
    assert needed is not None
    assert needed >= fewest_to_prove(1)
    done = 0
    for _ in range(50):
        one, two = ([middle * rng.lognormvariate(0, 0.1) for _ in range(needed + 2)] for middle in (1.0, 1.4))
        done += proven(one, two)
    assert done > 40


def test_how_many_runs_prove_something() -> None:
    assert [fewest_to_prove(pairs_of(count)) for count in (2, 3, 4, 5, 7, 8, 12)] == [4, 5, 5, 6, 6, 7, 7]
    for count in (2, 3, 5, 8):
        pairs = pairs_of(count)
        runs = fewest_to_prove(pairs)
        apart = [1 + 0.01 * at for at in range(runs)], [5 + 0.01 * at for at in range(runs)]
        assert proven(*apart, pairs)
        assert not proven(apart[0][1:], apart[1][1:], pairs)


@pytest.mark.parametrize(
    ("level", "degrees", "t"),
    [(0.95, 1, 12.7062), (0.95, 2, 4.30265), (0.95, 10, 2.22814), (0.99, 4, 4.60409), (0.99, 100, 2.62589)],
)
def test_students_t(level: float, degrees: float, t: float) -> None:
    assert student(level, degrees) == pytest.approx(t, rel=1e-4)


def test_the_chance_of_a_difference() -> None:
    assert chance_of([1.0, 2.0], [3.0, 4.0]) == pytest.approx(1 / 3), "two of six deals"
    assert chance_of([3.0, 4.0], [1.0, 2.0]) == pytest.approx(1 / 3), "whichever of them is first"
    assert chance_of([1.0], [1.0]) == 1
    assert chance_of([0.0, 0.0, 0.0], [1.0, 1.0, 1.0]) == pytest.approx(2 / 20)
    one, other = ([base + 0.001 * number for number in range(12)] for base in (0.0, 1.0))
    assert math.comb(24, 12) > MOST_DEALS
    assert chance_of(one, other) < 0.001, "drawn, for there are too many ways"


def test_relations() -> None:
    def relation(best: list[float], other: list[float]) -> str:
        return compare(best, other).relation

    assert relation([1.0], [7.0]) == "one run"
    assert relation([1.0, 1.01, 1.02], [1.0, 1.01, 1.02]) == "undecided", "within 2 % or not, three runs do not say"
    assert relation([1.0, 1.001, 1.002], [1.001, 1.002, 1.003]) == "alike"
    assert relation([1.0, 1.1, 1.2], [2.0, 2.1, 2.2]) == "slower"
    assert relation([0.0, 0.0], [0.0, 0.0]) == "alike"
    assert relation([0.0, 0.0], [1.0, 2.0]) == "slower"
    assert relation([0.0, 2.0], [1.0, 2.0]) == "undecided"


def test_what_is_infinite_is_null_in_json() -> None:
    comparison = compare([0.0] * 4, [1.0] * 4)
    assert (comparison.sure, comparison.factor, comparison.table()["factor"]) == ("yes", math.inf, None)
    assert isinstance(comparison, Comparison)


def test_distance_takes_certainty_away() -> None:
    near = [1.0, 1.01, 1.02, 1.03], [2.0, 2.01, 2.02, 2.03]
    assert [compare(*near, away=away).sure for away in (0.0, 0.5, 3.0)] == ["yes", "fairly", "no"]
