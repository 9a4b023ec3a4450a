"""Says in one sentence which transport is fastest, by how much, within which interval, and how sure that is.

``comparing`` has the method. ``sure`` is "yes" if a permutation test proves the claim under the requested conditions.
It is "fairly" if the interval supports the claim but there are too few runs to prove it, or if the measured conditions
are only near the requested ones. Else it is "no".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from thalweg.ui.comparing import (
    ALIKE_WORD,
    MOST_RUNS,
    NEAR,
    ONE_RUN,
    SLOWER,
    SURE,
    UNDECIDED,
    Comparison,
    at_distance,
    center,
    compare,
    pairs_of,
)

# Factors from this one on are written as "times as long", smaller ones in percent.
TIMES: Final = 2.0
# The ends of an interval are not printed if they are beyond these factors: such a wide interval tells nothing.
MOST_TIMES: Final = 1000.0
MOST_NAMED: Final = 4
# The option of ``thalweg bench`` for the number of runs.
OPTION: Final = "--repetitions"


@dataclass(frozen=True)
class Verdict:
    """The fastest transport (None if no run ended), how the others compare with it, and those that failed.

    ``compared`` has the others by name, the faster first. ``failed``: for each transport with failures, the number of
    failed runs and of all runs. ``runs``: the fewest and the most runs of a transport.
    """

    best: str | None
    compared: Mapping[str, Comparison]
    failed: Mapping[str, tuple[int, int]]
    runs: tuple[int, int]
    away: float = 0.0

    @property
    def leaders(self) -> list[str]:
        """The fastest transport, and those that are not known to be slower."""
        return [*([self.best] if self.best else []), *self._of(ALIKE_WORD), *self._of(UNDECIDED)]

    @property
    def sure(self) -> str:
        """How sure the least sure claim is, of those that others are slower or alike. Without a claim it is "no"."""
        claims = [one.sure for one in self.compared.values() if one.relation != UNDECIDED]
        return at_distance(min(claims, key=SURE.index, default="no"), self.away)

    @property
    def repetitions(self) -> int | None:
        """How many runs of each would prove all open claims; None if none is open, or if 100 are too few."""
        return max((one.needed for one in self.compared.values() if one.needed is not None), default=None)

    @property
    def sentence(self) -> str:
        """Return the verdict in one sentence."""
        parts = [self._first(), self._named(), self._failed()]
        sure = f"sure: {self.sure}, {self._runs()}{self._needed()}{self._away()}"
        return "; ".join([*(part for part in parts if part), sure])

    def table(self) -> dict[str, object]:
        """Return the verdict as a table for JSON."""
        return {
            "sentence": self.sentence,
            "leaders": self.leaders,
            "compared": [{"transport": name, **one.table()} for name, one in self.compared.items()],
            "failed": {name: {"failed": failed, "runs": runs} for name, (failed, runs) in self.failed.items()},
            "runs": list(self.runs),
            "sure": self.sure,
            "repetitions": self.repetitions,
        }

    def _of(self, *relations: str) -> list[str]:
        return [name for name, one in self.compared.items() if one.relation in relations]

    def _first(self) -> str:
        if self.best is None:
            return "no run came to its end"
        if not self.compared:
            return f"{self.best} is fastest" if self.failed else f"only {self.best} was measured"
        if len(self.leaders) > 1:
            what = "too close to call" if self._of(UNDECIDED) else "alike"
            bounds = [f"{name} takes {between(self.compared[name])} times as long" for name in self.leaders[1:]]
            return f"{listed(self.leaders)} are {what} ({', '.join(bounds[:MOST_NAMED])})"
        return f"{self.best} {'was' if self._of(ONE_RUN) else 'is'} fastest"

    def _named(self) -> str:
        named = self._of(SLOWER, ONE_RUN)
        rest = len(named) - MOST_NAMED
        words = [f"{name} {how_much(self.compared[name])}" for name in named[:MOST_NAMED]]
        return ", ".join([*words, *([f"{rest} more are slower still"] if rest > 0 else [])])

    def _failed(self) -> str:
        return ", ".join(
            f"{name} failed" if failed == runs else f"{failed} of {runs} runs of {name} failed"
            for name, (failed, runs) in self.failed.items()
        )

    def _runs(self) -> str:
        least, most = self.runs
        if least == most:
            return f"{least} run{'' if least == 1 else 's'} each"
        return f"{least} to {most} runs each"

    def _needed(self) -> str:
        runs = self.repetitions
        if any(one.needed for one in self.compared.values() if one.relation != UNDECIDED):
            return f" cannot prove it, {runs} would: {OPTION} {runs}"
        if runs is not None:
            return f"; {runs} each would tell: {OPTION} {runs}"
        return f"; even {MOST_RUNS} each would not tell" if self._of(UNDECIDED) else ""

    def _away(self) -> str:
        return "" if self.away < NEAR else f", measured {self.away:.1f} doublings away from what was asked"


def verdict(
    values: Mapping[str, Sequence[float]],
    failed: Mapping[str, int] | None = None,
    away: float = 0.0,
) -> Verdict:
    """Return the verdict on transports. ``values`` has the seconds of each transport's runs; less is better.

    ``failed``: how many further runs of each failed. ``away``: distance between the measured and the requested
    conditions, in doublings.
    """
    times_by_name = {name: list(times) for name, times in values.items() if times}
    lost = {name: count for name, count in (failed or {}).items() if count}
    ranked = sorted(times_by_name, key=lambda name: center(times_by_name[name]))
    pairs = pairs_of(len(ranked))
    counts = [len(times) for times in times_by_name.values()] or [0]
    return Verdict(
        best=ranked[0] if ranked else None,
        compared={name: compare(times_by_name[ranked[0]], times_by_name[name], pairs, away) for name in ranked[1:]},
        failed={name: (count, count + len(times_by_name.get(name, ()))) for name, count in lost.items()},
        runs=(min(counts), max(counts)),
        away=away,
    )


def how_much(one: Comparison) -> str:
    """Return how much slower one is, such as ``is 9 % slower (6 to 12 %)`` or ``takes 7.0 times as long``."""
    if one.relation == ONE_RUN:
        return f"took {_times(one.factor)} times as long"
    if one.factor >= TIMES:
        bounds = "" if one.low is None else f" ({between(one)})"
        return f"takes {_times(one.factor)} times as long{bounds}"
    bounds = "" if one.low is None or one.high is None else f" ({_percent(one.low)} to {_percent(one.high)} %)"
    return f"is {_percent(one.factor)} % slower{bounds}"


def between(one: Comparison) -> str:
    """Return the interval as text, such as ``5.1 to 9.7``; without an interval, the factor as text."""
    if one.low is None or one.high is None:
        return _times(one.factor)
    return f"{_times(one.low)} to {_times(one.high)}"


def _times(factor: float) -> str:
    if factor >= MOST_TIMES:
        return "more than 1000"
    return f"{factor:.2f}" if factor < TIMES else f"{factor:.1f}" if factor < 10 else f"{factor:.0f}"


def _percent(factor: float) -> str:
    more = 100 * (factor - 1)
    return f"{more:.0f}" if more >= 2 else f"{more:.1f}"


def listed(names: Sequence[str]) -> str:
    """Return names as an enumeration, such as ``tcp, udp and mqtt``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
