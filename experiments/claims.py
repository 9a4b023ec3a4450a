"""What the paper found, as data, and whether a measurement shows the same.

``expected.json`` of a figure has ``paper`` and ``claims``. A claim ``says`` something in words, has the ``id`` of its
line in the requirements, a ``kind``, and places in the matrix: tables of axis and label, ``*`` for any. Its ``number``
is what of a cell is meant: ``seconds`` of communication if it says none, or another of ``NUMBERS``.

===========  ====================================================================================================
``ratio``    the sum of ``of`` over that of ``to``; the paper's is ``value``; shown if within a factor of 1.25
``reaches``  the same, and the paper has up to ``value``: shown if it is no less
``more``     the sum of ``of`` is more than that of ``to`` (each place of ``along``, if there is one)
``added``    the sum of ``of`` less the same of the figure ``base``, in seconds; the paper's is ``value``; as ``ratio``
``falls``    the values fall along the labels of ``along``, for each of ``of``'s
``rises``    they rise
``level``    the largest along ``along`` is at most ``factor`` times the least
``above``    each of ``of``'s is more than the paper's ``value``, or our ``least``, in the unit it is written with
``about``    each of ``of``'s agrees with the paper's ``value``, in the unit it is written with; as ``ratio``
``even``     Jain's index of each of ``of``'s is at least 0.9
``close``    the last accuracies of ``of`` and ``to`` differ by less than ``value``, a fraction
``worse``    the last accuracy of ``of`` is less than that of ``to``
===========  ====================================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from experiments.measured import Cell, rounded

Claim = Mapping[str, Any]
# A number is taken to agree if neither is more than a quarter above the other.
AGREES: Final = 1.25
# And flows to be alike, if Jain's index of them is no less.
EVEN: Final = 0.9
# What of a cell a claim may be about: the factor and the unit that it is written with.
NUMBERS: Final[Mapping[str, tuple[float, str]]] = {
    "seconds": (1.0, " s"),
    "goodput": (1e-6, " Mbit/s"),
    "slowest": (1e-6, " Mbit/s"),
    "share": (100.0, " %"),
    "missing": (100.0, " %"),
    "lost": (100.0, " %"),
    "queue_seconds": (1e3, " ms"),
    "jain": (1.0, ""),
    "exchange_mean": (1e3, " ms"),
    "exchange_median": (1e3, " ms"),
    "exchange_std": (1e3, " ms"),
    "used": (100.0, " %"),
    "timeouts": (100.0, " %"),
    "gap_mean": (1.0, " s"),
    "last": (1.0, " nodes"),
    "reached": (100.0, " %"),
    "reached_std": (100.0, " points"),
    "tested_loss": (1.0, ""),
    "finish_seconds": (1.0, " s"),
    "completion": (1e3, " ms"),
    "hand_over": (1e3, " ms"),
    "taken": (1e3, " ms"),
    "cpu": (1.0, " s"),
    "off": (100.0, " %"),
    "created": (1.0, " aggregators"),
    "nodes_used": (1.0, " nodes"),
    "time_to": (1.0, " s"),
    "cpu_to": (1.0, " s"),
}


@dataclass(frozen=True)
class Verdict:
    """Whether a claim was seen: yes, no, or None where something is missing; with the number, in words."""

    seen: bool | None
    words: str


def read(file: Path) -> list[Claim]:
    """Return the claims of a figure."""
    claims: list[Claim] = json.loads(file.read_text())["claims"]
    return claims


def judge(claim: Claim, cells: Sequence[Cell], base: Sequence[Cell]) -> Verdict:
    """Return whether ``cells`` show what the claim says; ``base`` are those of the figure that it names."""
    try:
        if claim["kind"] == "added":
            return _added(claim, cells, base)
        return _KINDS[claim["kind"]](claim, cells)
    except MissingError as error:
        return Verdict(None, f"without {error}")


class MissingError(Exception):
    """A place of the matrix that has no value."""


def value(cells: Sequence[Cell], place: Mapping[str, str], number: str = "seconds") -> float:
    """Return the sum of a number of all cells at a place. Raises MissingError."""
    return sum(_each(cells, place, number))


def _each(cells: Sequence[Cell], place: Mapping[str, str], number: str) -> list[float]:
    found = [cell.numbers.get(number) for cell in cells if cell.is_at(place)]
    if not found or None in found:
        raise MissingError(", ".join(place.values()) or "the cells")
    return [float(one) for one in found if one is not None]


def _accuracy(cells: Sequence[Cell], place: Mapping[str, str]) -> float:
    series = [cell.numbers["accuracy"] for cell in cells if cell.is_at(place)]
    if len(series) != 1 or not series[0]:
        raise MissingError(", ".join(place.values()))
    return float(series[0][-1])


def _ratio(claim: Claim, cells: Sequence[Cell]) -> Verdict:
    found = _quotient(claim, cells, {})
    return Verdict(_agrees(found, claim["value"]), f"{found:.2f}")


def _reaches(claim: Claim, cells: Sequence[Cell]) -> Verdict:
    found = _quotient(claim, cells, {})
    return Verdict(found >= claim["value"], f"{found:.2f}")


def _quotient(claim: Claim, cells: Sequence[Cell], at: Mapping[str, str]) -> float:
    number = _number(claim)
    return value(cells, {**claim["of"], **at}, number) / value(cells, {**claim["to"], **at}, number)


def _number(claim: Claim) -> str:
    return str(claim.get("number", "seconds"))


def _added(claim: Claim, cells: Sequence[Cell], base: Sequence[Cell]) -> Verdict:
    found = value(cells, claim["of"]) - value(base, claim["of"])
    return Verdict(_agrees(found, claim["value"]), f"{found:+.1f} s")


def _agrees(found: float, paper: float) -> bool:
    return found * paper > 0 and max(found / paper, paper / found) <= AGREES


def _more(claim: Claim, cells: Sequence[Cell]) -> Verdict:
    along = claim.get("along", {})
    places = [{axis: label} for axis, labels in along.items() for label in labels] or [{}]
    ratios = [_quotient(claim, cells, at) for at in places]
    return Verdict(all(ratio > 1 for ratio in ratios), ", ".join(f"{ratio:.2f}" for ratio in ratios))


def _series(claim: Claim, cells: Sequence[Cell]) -> list[float]:
    ((axis, labels),) = claim["along"].items()
    return [value(cells, {**claim["of"], axis: label}, _number(claim)) for label in labels]


def _falls(claim: Claim, cells: Sequence[Cell]) -> Verdict:
    found = _series(claim, cells)
    return Verdict(all(a > b for a, b in pairwise(found)), _words(claim, found))


def _rises(claim: Claim, cells: Sequence[Cell]) -> Verdict:
    found = _series(claim, cells)
    return Verdict(all(a < b for a, b in pairwise(found)), _words(claim, found))


def _level(claim: Claim, cells: Sequence[Cell]) -> Verdict:
    found = _series(claim, cells)
    return Verdict(max(found) <= claim["factor"] * min(found), _words(claim, found))


def _close(claim: Claim, cells: Sequence[Cell]) -> Verdict:
    apart = abs(_accuracy(cells, claim["of"]) - _accuracy(cells, claim["to"]))
    return Verdict(apart < claim["value"], f"{100 * apart:.2f} points")


def _worse(claim: Claim, cells: Sequence[Cell]) -> Verdict:
    less = _accuracy(cells, claim["to"]) - _accuracy(cells, claim["of"])
    return Verdict(less > 0, f"{100 * less:.2f} points less")


def _above(claim: Claim, cells: Sequence[Cell]) -> Verdict:
    found = _each(cells, claim["of"], _number(claim))
    factor, _ = NUMBERS[_number(claim)]
    least = claim.get("value", claim.get("least"))
    return Verdict(all(one * factor > least for one in found), _words(claim, found))


def _about(claim: Claim, cells: Sequence[Cell]) -> Verdict:
    found = _each(cells, claim["of"], _number(claim))
    factor, _ = NUMBERS[_number(claim)]
    return Verdict(all(_agrees(one * factor, claim["value"]) for one in found), _words(claim, found))


def _even(claim: Claim, cells: Sequence[Cell]) -> Verdict:
    found = _each(cells, claim["of"], "jain")
    return Verdict(min(found) >= EVEN, ", ".join(f"{one:.3f}" for one in found))


def _words(claim: Claim, values: Sequence[float]) -> str:
    factor, unit = NUMBERS[_number(claim)]
    return ", ".join(f"{rounded(factor * one):g}" for one in values) + unit


_KINDS: Final[Mapping[str, Callable[[Claim, Sequence[Cell]], Verdict]]] = {
    "ratio": _ratio,
    "reaches": _reaches,
    "more": _more,
    "falls": _falls,
    "rises": _rises,
    "level": _level,
    "above": _above,
    "about": _about,
    "even": _even,
    "close": _close,
    "worse": _worse,
}
