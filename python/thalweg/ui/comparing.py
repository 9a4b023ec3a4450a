"""Compares transports: the ratio of their times, its confidence interval, and how many runs would settle it.

It compares runs and not rounds, because the rounds of a run are not independent. The compared value is the ratio of
geometric means.

- Its confidence interval is Welch's, by Student's t on the logarithms. All intervals of a comparison hold together with
  95 %: k transports have k (k - 1) / 2 pairs, and each pair gets an equal part of the 5 % (Bonferroni).
- A permutation test proves a difference. It assumes nothing about the distribution of times. Of all ways to divide the
  runs between the two transports, it takes the fraction that separates them at least as far. That fraction, times the
  number of pairs, must be at most 5 %. So equal transports are wrongly called different in at most
    5 % of all cases. Two runs of each prove nothing: two of their six divisions separate them as far.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, variance
from typing import Final

# The significance level: the accepted probability of a wrong "yes".
ALPHA: Final = 0.05
# Ratios within this of 1 count as equal.
ALIKE: Final = 0.02
# Maximum number of divisions of runs between two transports that are tried. If there are more, random ones are tried.
MOST_DEALS: Final = 20_000
# Maximum number of repetitions that a verdict asks for.
MOST_RUNS: Final = 100
# How sure a claim is, in ascending order. All outputs use the same words.
SURE: Final = ("no", "fairly", "yes")
# Limits for the distance between measured and requested conditions, in doublings. From NEAR on a claim is at most
# "fairly" sure, beyond FAR it is not ("no").
NEAR: Final = 0.1
FAR: Final = 2.0

SLOWER: Final = "slower"
ALIKE_WORD: Final = "alike"
UNDECIDED: Final = "undecided"
ONE_RUN: Final = "one run"


@dataclass(frozen=True)
class Comparison:
    """How another transport compares with the best one.

    ``relation``: slower, alike (by 2 % at most), undecided, or "one run", if a transport has only one run, so the
    spread is unknown. ``factor``: how many times as long it takes; infinite if the best takes no time. ``low`` and
    ``high``: the confidence interval of ``factor``, None if there is none. ``chance``: the two-sided p-value times the
    number of pairs. ``needed``: how many runs of each would prove the relation, if further runs are distributed like
    these; None if it is proven, or if even 100 runs would not prove it.
    """

    relation: str
    factor: float
    low: float | None
    high: float | None
    chance: float
    sure: str
    needed: int | None

    def table(self) -> dict[str, object]:
        """Return the comparison as a table for JSON; an infinite factor is null."""
        finite = self.factor if math.isfinite(self.factor) else None
        return {
            "relation": self.relation, "factor": finite, "low": self.low, "high": self.high, "chance": self.chance,
            "sure": self.sure, "needed": self.needed,
        }  # fmt: skip


def compare(best: Sequence[float], other: Sequence[float], pairs: int = 1, away: float = 0.0) -> Comparison:
    """Return how runs of another transport compare with those of the best one, each with at least one run.

    ``pairs``: how many pairs of transports could have been compared. ``away``: distance between the measured and the
    requested conditions, in doublings.
    """
    factor = ratio(center(other), center(best))
    fewest = min(len(best), len(other))
    low, high = interval(best, other, pairs) or (None, None)
    chance = min(1.0, pairs * chance_of(best, other))
    relation = ONE_RUN if fewest < 2 else _relation(best, other, (low, high))
    proven = chance <= ALPHA if relation == SLOWER else fewest >= fewest_to_prove(pairs)
    sure = {ONE_RUN: "no", UNDECIDED: "no"}.get(relation, "yes" if proven else "fairly")
    needed = None if sure == "yes" else needed_runs(best, other, pairs)
    return Comparison(relation, factor, low, high, chance, at_distance(sure, away), needed)


def at_distance(sure: str, away: float) -> str:
    """Return how sure a claim is if its measurement is ``away`` doublings from the requested conditions."""
    return "no" if away > FAR else "fairly" if away >= NEAR and sure == "yes" else sure


def _relation(best: Sequence[float], other: Sequence[float], bounds: tuple[float | None, float | None]) -> str:
    low, high = bounds
    if low is None or high is None:  # a time of 0 has no logarithm
        return SLOWER if max(best) < min(other) else ALIKE_WORD if {*best} == {*other} else UNDECIDED
    if low >= 1 / (1 + ALIKE) and high <= 1 + ALIKE:
        return ALIKE_WORD
    return SLOWER if low > 1 else UNDECIDED


def center(values: Sequence[float]) -> float:
    """Return the geometric mean, or the arithmetic mean if a value is not above 0."""
    if all(value > 0 for value in values):
        return math.exp(fmean(map(math.log, values)))
    return fmean(values)


def ratio(one: float, other: float) -> float:
    """Return ``one`` divided by ``other``; 1 if both are 0, infinite if only ``other`` is."""
    return one / other if other else math.inf if one else 1.0


def interval(best: Sequence[float], other: Sequence[float], pairs: int = 1) -> tuple[float, float] | None:
    """Return the confidence interval of the ratio other / best; None for a single run, or for a value not above 0."""
    if min(len(best), len(other)) < 2 or min(*best, *other) <= 0:
        return None
    logs = [[math.log(value) for value in values] for values in (best, other)]
    parts = [variance(values) / len(values) for values in logs]
    middle, error = fmean(logs[1]) - fmean(logs[0]), math.sqrt(sum(parts))
    if not error:
        return math.exp(middle), math.exp(middle)
    # The degrees of freedom by Welch and Satterthwaite.
    degrees = sum(parts) ** 2 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, logs, strict=True))
    reach = error * student(1 - ALPHA / pairs, round(max(1.0, degrees), 3))
    return _exp(middle - reach), _exp(middle + reach)


def _exp(value: float) -> float:
    return math.exp(max(-700.0, min(700.0, value)))


def chance_of(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the two-sided p-value of a permutation test: how likely random divisions differ at least as much.

    Exact if there are at most 20,000 divisions, else from as many random ones, drawn with a fixed seed.
    """
    pooled = [*one, *other]
    pooled = [math.log(value) for value in pooled] if min(pooled) > 0 else pooled
    count, total = len(one), math.fsum(pooled)
    middle = total * count / len(pooled)
    limit = abs(math.fsum(pooled[:count]) - middle) - 1e-9 * (1 + abs(total))
    if math.comb(len(pooled), count) <= MOST_DEALS:
        deals = [sum(deal) for deal in itertools.combinations(pooled, count)]
        return sum(abs(deal - middle) >= limit for deal in deals) / len(deals)
    rng = random.Random(0)
    hits = sum(abs(sum(rng.sample(pooled, count)) - middle) >= limit for _ in range(MOST_DEALS))
    return (hits + 1) / (MOST_DEALS + 1)


def pairs_of(transports: int) -> int:
    """Return how many pairs ``transports`` transports have, at least 1."""
    return max(1, math.comb(transports, 2))


@lru_cache
def fewest_to_prove(pairs: int) -> int:
    """Return the fewest runs of each transport with which a permutation test of ``pairs`` pairs can prove anything."""
    return next(runs for runs in itertools.count(2) if pairs * 2 / math.comb(2 * runs, runs) <= ALPHA)


def needed_runs(best: Sequence[float], other: Sequence[float], pairs: int = 1) -> int | None:
    """Return how many runs of each, more than there are, would prove that the transports differ, or are alike.

    It assumes that further runs are distributed like these. None if more than ``MOST_RUNS`` are necessary.
    """
    fewest = min(len(best), len(other))
    least = max(fewest_to_prove(pairs), fewest + 1)
    if fewest < 2:
        return least
    if min(*best, *other) <= 0:
        return None
    logs = [[math.log(value) for value in values] for values in (best, other)]
    apart, spread = abs(fmean(logs[1]) - fmean(logs[0])), math.sqrt(sum(map(variance, logs)))
    enough = max(apart, math.log1p(ALIKE) - apart)
    return next((runs for runs in range(least, MOST_RUNS + 1) if _reach(spread, runs, pairs) < enough), None)


def _reach(spread: float, runs: int, pairs: int) -> float:
    return spread / math.sqrt(runs) * student(1 - ALPHA / pairs, 2 * runs - 2) if spread else 0.0


@lru_cache(maxsize=4096)
def student(level: float, degrees: float) -> float:
    """Return t so that -t <= T <= t with probability ``level``, for Student's T with at least one degree of freedom.

    T is sqrt(degrees) tan(angle), where the angle has density cos(angle) ** (degrees - 1).
    """
    whole = 0.5 * math.sqrt(math.pi) * math.exp(math.lgamma(degrees / 2) - math.lgamma((degrees + 1) / 2))
    low, high = 0.0, math.pi / 2
    for _ in range(50):
        angle = (low + high) / 2
        low, high = (angle, high) if _integral(angle, degrees - 1) < level * whole else (low, angle)
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _integral(end: float, power: float) -> float:
    """Return the integral of cos ** power from 0 to ``end``, by Simpson's rule."""
    steps = 200
    values: list[float] = [max(0.0, math.cos(end * step / steps)) ** power for step in range(steps + 1)]
    return end / steps / 3 * (values[0] + values[-1] + 4 * sum(values[1:-1:2]) + 2 * sum(values[2:-1:2]))
