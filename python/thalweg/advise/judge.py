"""Finds the transport whose runs have the least of a value, such as the duration, and says how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from thalweg.advise.evidence import Group, Measured, incomplete
from thalweg.ui.comparing import ALIKE, ALIKE_WORD, NEAR, Comparison, center, compare, pairs_of

Value = Callable[[Measured], "float | None"]


@dataclass(frozen=True)
class Answer:
    """The best transport for one question, the next best, and their comparison, if there is a next one."""

    transport: str
    value: float
    next: str | None
    next_value: float | None
    compared: Comparison | None
    why: tuple[str, ...]

    @property
    def sure(self) -> str:
        """How sure the answer is: yes, fairly or no."""
        return "no" if self.compared is None else self.compared.sure

    def table(self) -> dict[str, object]:
        """Return the answer as a table for JSON. ``factor``: how many times as much the next one needs."""
        keys = ("relation", "factor", "low", "high", "chance", "needed")
        compared: dict[str, object] = dict.fromkeys(keys) if self.compared is None else self.compared.table()
        return {
            "transport": self.transport,
            "value": self.value,
            "next": self.next,
            "next_value": self.next_value,
            **compared,
            "sure": self.sure,
            "why": list(self.why),
        }


def least(group: Group, value: Value, away: float) -> Answer | None:
    """Return the transport of a group with the least geometric mean of a value over runs; None if no run has it.

    ``away``: distance of the group from the conditions of the question, in doublings.
    """
    values_by_name = {name: values for name, runs in group.runs.items() if (values := _values(runs, value))}
    ranked = sorted(values_by_name, key=lambda name: center(values_by_name[name]))
    if not ranked:
        return None
    best, following = ranked[0], next(iter(ranked[1:]), None)
    if following is None:
        return Answer(best, center(values_by_name[best]), None, None, None, (f"only {best} was measured there",))
    compared = compare(values_by_name[best], values_by_name[following], pairs_of(len(ranked)), away)
    why = _why(compared, (len(values_by_name[best]), len(values_by_name[following])), len(ranked), away)
    # Data that never arrived took no time.
    short = sum(map(incomplete, group.runs[best]))
    why += (f"{short} rounds of {best} lacked some of their updates",) if short else ()
    return Answer(best, center(values_by_name[best]), following, center(values_by_name[following]), compared, why)


def _values(runs: Sequence[Measured], value: Value) -> list[float]:
    return [one for one in map(value, runs) if one is not None]


def _why(compared: Comparison, counts: tuple[int, int], transports: int, away: float) -> tuple[str, ...]:
    among = f" in one of the pairs of {transports} transports" if transports > 2 else ""
    why = [
        f"{counts[0]} and {counts[1]} runs",
        f"by chance alone they would differ so with a probability of {compared.chance:.3g}{among}",
        "measured under what was asked" if away < NEAR else f"measured {away:.1f} doublings away from what was asked",
    ]
    if compared.relation == ALIKE_WORD:
        why.append(f"they differ by no more than {ALIKE:.0%}".replace("%", " %"))
    if compared.needed is not None:
        why.append(f"{compared.needed} runs each would prove it: --repetitions {compared.needed}")
    return tuple(why)
