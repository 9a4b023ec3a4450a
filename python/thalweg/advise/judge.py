"""Which of several transports is best, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from thalweg.advise.evidence import Group, Measured, incomplete
from thalweg.report.numbers import divided
from thalweg.ui.verdict import ALIKE, FAR, FEW, LIKELY, NEAR, chance

UNLIKELY: Final = 0.2

Value = Callable[[Measured], "float | None"]


@dataclass(frozen=True)
class Answer:
    """The best transport for one question, the next, and how sure that is: high, fair, low or none."""

    transport: str
    value: float
    next: str | None
    next_value: float | None
    chance: float | None
    sure: str
    why: tuple[str, ...]

    def table(self) -> dict[str, Any]:
        """Return it as JSON has it; ``factor``: how many times as much the next one needs."""
        return {
            "transport": self.transport,
            "value": self.value,
            "next": self.next,
            "next_value": self.next_value,
            "factor": divided(self.next_value, self.value),
            "chance": self.chance,
            "sure": self.sure,
            "why": list(self.why),
        }


def least(group: Group, value: Value, away: float) -> Answer | None:
    """Return which transport of a group has the least of a value; None if no run has it.

    ``away``: how far the group is from what was asked, in doublings.
    """
    known = {name: _known(runs, value) for name, runs in group.runs.items()}
    ranked = sorted((name for name in known if known[name]), key=lambda name: median(known[name]))
    if not ranked:
        return None
    best, following = ranked[0], next(iter(ranked[1:]), None)
    if following is None:
        return Answer(best, median(known[best]), None, None, None, "none", (f"only {best} was measured there",))
    odds = chance(known[best], known[following])
    sure, why = _sure(known, (best, following), odds, away)
    # What never came took no time.
    short = sum(map(incomplete, group.runs[best]))
    why += (f"{short} rounds of {best} lacked some of their updates",) if short else ()
    return Answer(best, median(known[best]), following, median(known[following]), odds, sure, why)


def _known(runs: Sequence[Measured], value: Value) -> list[float]:
    return [one for one in map(value, runs) if one is not None]


def _sure(
    known: Mapping[str, Sequence[float]], pair: tuple[str, str], odds: float, away: float
) -> tuple[str, tuple[str, ...]]:
    counts = [len(known[name]) for name in pair]
    fewest = min(counts)
    ranges = ", ".join(f"{name} {_spread(known[name])}" for name in pair)
    why = (
        f"{counts[0]} and {counts[1]} runs, whose spread is {ranges}",
        f"by chance alone they would differ so with a probability of {odds:.3g}",
        "measured under what was asked" if away < NEAR else f"measured {away:.1f} doublings away from what was asked",
    )
    middle, following = (median(known[name]) for name in pair)
    alike = ("they differ by no more than 2 %",) if following - middle <= ALIKE * middle else ()
    if fewest < FEW or odds > UNLIKELY or away > FAR:
        return "low", (*why, *alike)
    return ("high" if odds <= LIKELY and away < NEAR else "fair"), (*why, *alike)


def _spread(values: Sequence[float]) -> str:
    middle = median(values)
    if not middle or len(values) < 2:
        return "not known" if len(values) < 2 else "0 %"
    return f"{100 * (max(values) - min(values)) / middle:.0f} %"
