"""Which of several transports is fastest, in one sentence, and how sure that is.

Transports are compared by runs, not rounds, which are alike within a run. Two are too close to call if runs that are
dealt out to them by chance would often differ as much (a permutation test), or if their medians hardly differ.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final

# Of more ways to deal runs out to two transports than this, so many are drawn.
MOST_DEALS: Final = 20_000
# Up to this chance two transports count as different.
LIKELY: Final = 0.05
# Medians no farther apart than this share are alike in any case.
ALIKE: Final = 0.02
# Of each transport: with fewer runs than these nothing can be sure, or only fairly.
ENOUGH: Final = 3
FEW: Final = 2
# Doublings between what was measured and what was asked.
NEAR: Final = 0.1
FAR: Final = 2.0
# From this factor on "times as long" reads better than percent.
TIMES: Final = 2.0
MOST_NAMED: Final = 4


@dataclass(frozen=True)
class Slower:
    """A transport that is not among the fastest: how many times as long it takes, and by what chance that is so."""

    transport: str
    factor: float
    chance: float

    def table(self) -> dict[str, Any]:
        """Return it as JSON has it; ``factor`` is null if the fastest took no time."""
        factor = self.factor if math.isfinite(self.factor) else None
        return {"transport": self.transport, "factor": factor, "chance": self.chance}


@dataclass(frozen=True)
class Verdict:
    """Those that are fastest, or too close to call; the slower ones; those that failed; and how sure it is.

    ``runs`` are the fewest and the most runs of a transport; ``sure`` is yes, fairly or no; ``failed`` how many runs of
    which transport failed, of how many.
    """

    leaders: Sequence[str]
    slower: Sequence[Slower]
    failed: Mapping[str, tuple[int, int]]
    runs: tuple[int, int]
    sure: str
    away: float = 0.0

    @property
    def sentence(self) -> str:
        """Return it in one sentence."""
        parts = [self._first(), *self._slower(), *self._failed()]
        return f"{'; '.join(part for part in parts if part)}; sure: {self.sure}, {self._runs()}{self._away()}"

    def table(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "sentence": self.sentence,
            "leaders": list(self.leaders),
            "slower": [one.table() for one in self.slower],
            "failed": {name: {"failed": failed, "runs": runs} for name, (failed, runs) in self.failed.items()},
            "runs": list(self.runs),
            "sure": self.sure,
        }

    def _first(self) -> str:
        if not self.leaders:
            return "no run came to its end"
        if len(self.leaders) > 1:
            return f"{listed(self.leaders)} are too close to call"
        only = not self.slower and not self.failed
        return f"only {self.leaders[0]} was measured" if only else f"{self.leaders[0]} is fastest"

    def _slower(self) -> list[str]:
        named = [f"{one.transport} {how_much(one.factor)}" for one in self.slower[:MOST_NAMED]]
        rest = len(self.slower) - MOST_NAMED
        named += [f"{rest} more are slower still"] if rest > 0 else []
        return [", ".join(named)] if named else []

    def _failed(self) -> list[str]:
        said = [
            f"{name} failed" if failed == runs else f"{failed} of {runs} runs of {name} failed"
            for name, (failed, runs) in self.failed.items()
        ]
        return [", ".join(said)] if said else []

    def _runs(self) -> str:
        least, most = self.runs
        if least == most:
            return f"{least} run{'' if least == 1 else 's'} each"
        return f"{least} to {most} runs each"

    def _away(self) -> str:
        return "" if self.away < NEAR else f", measured {self.away:.1f} doublings away from what was asked"


def verdict(
    values: Mapping[str, Sequence[float]],
    failed: Mapping[str, int] | None = None,
    away: float = 0.0,
) -> Verdict:
    """Return the verdict on transports of whose runs ``values`` has the seconds, less being better.

    ``failed``: how many further runs of each failed. ``away``: how far what was measured is from what was asked, in
    doublings.
    """
    known = {name: list(found) for name, found in values.items() if found}
    lost = {name: count for name, count in (failed or {}).items() if count}
    ranked = sorted(known, key=lambda name: median(known[name]))
    odds = {name: chance(known[ranked[0]], known[name]) for name in ranked[1:]}
    close = [name for name in ranked[1:] if is_close(known[ranked[0]], known[name], odds[name])]
    slower = [
        Slower(name, ratio(median(known[name]), median(known[ranked[0]])), odds[name])
        for name in ranked[1:]
        if name not in close
    ]
    counts = [len(found) for found in known.values()] or [0]
    return Verdict(
        leaders=[*ranked[:1], *close],
        slower=slower,
        failed={name: (count, count + len(known.get(name, ()))) for name, count in lost.items()},
        runs=(min(counts), max(counts)),
        sure=_sure(min(counts), len(known), away),
        away=away,
    )


def _sure(fewest: int, transports: int, away: float) -> str:
    if transports < 2 or fewest < FEW or away > FAR:
        return "no"
    return "yes" if fewest >= ENOUGH and away < NEAR else "fairly"


def is_close(best: Sequence[float], other: Sequence[float], odds: float) -> bool:
    """Return whether two transports are too close to call."""
    return odds > LIKELY or median(other) - median(best) <= ALIKE * median(best)


def chance(less: Sequence[float], more: Sequence[float]) -> float:
    """Return how likely runs dealt out by chance would differ in their means at least as much: a permutation test.

    One-sided; exact where there are at most 20,000 ways to deal, else from as many drawn with a fixed seed.
    """
    pooled = [*less, *more]
    count, total = len(less), sum(pooled)
    limit = fmean(less) * count * (1 + 1e-12)
    ways = math.comb(len(pooled), count)
    if ways <= MOST_DEALS:
        sums = [sum(deal) for deal in itertools.combinations(pooled, count)]
    else:
        dice = random.Random(0)
        sums = [sum(dice.sample(pooled, count)) for _ in range(MOST_DEALS)]
    hits = sum(1 for one in sums if one <= limit + 1e-12 * abs(total))
    return hits / len(sums)


def ratio(one: float, other: float) -> float:
    """Return how many times ``other`` ``one`` is; 1 where both are nothing."""
    return one / other if other else math.inf if one else 1.0


def how_much(factor: float) -> str:
    """Return by how much something takes longer, as ``is 9 % slower`` or ``takes 2.4 times as long``."""
    if factor >= TIMES:
        return f"takes {factor:.1f} times as long" if factor < 10 else f"takes {factor:.0f} times as long"
    return f"is {100 * (factor - 1):.0f} % slower"


def listed(names: Sequence[str]) -> str:
    """Return names in words, as ``tcp, udp and mqtt``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
