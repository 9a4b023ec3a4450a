"""What the paper found, as data, and whether a measurement shows the same.

``expected.json`` of a figure has ``paper`` and ``claims``. A claim ``says`` something in words, has the ``id`` of its
line in the requirements, a ``kind``, and places in the matrix: tables of axis and label, ``*`` for any.

=========  ====================================================================================================
``ratio``  the sum of ``of`` over that of ``to``; the paper's is ``value``; shown if within a factor of 1.25
``more``   the sum of ``of`` is more than that of ``to`` (each place of ``along``, if there is one)
``added``  the sum of ``of`` less the same of the figure ``base``, in seconds; the paper's is ``value``; as ``ratio``
``falls``  the values fall along the labels of ``along``, for each of ``of``'s
``rises``  they rise
``level``  the largest along ``along`` is at most ``factor`` times the least
``close``  the last accuracies of ``of`` and ``to`` differ by less than ``value``, a fraction
``worse``  the last accuracy of ``of`` is less than that of ``to``
=========  ====================================================================================================
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


def value(cells: Sequence[Cell], place: Mapping[str, str]) -> float:
    """Return the sum of the seconds of all cells at a place. Raises MissingError."""
    found = [cell.numbers["seconds"] for cell in cells if cell.is_at(place)]
    if not found or None in found:
        raise MissingError(", ".join(place.values()) or "the cells")
    return float(sum(found))


def _accuracy(cells: Sequence[Cell], place: Mapping[str, str]) -> float:
    series = [cell.numbers["accuracy"] for cell in cells if cell.is_at(place)]
    if len(series) != 1 or not series[0]:
        raise MissingError(", ".join(place.values()))
    return float(series[0][-1])


def _ratio(claim: Claim, cells: Sequence[Cell]) -> Verdict:
    found = value(cells, claim["of"]) / value(cells, claim["to"])
    return Verdict(_agrees(found, claim["value"]), f"{found:.2f}")


def _added(claim: Claim, cells: Sequence[Cell], base: Sequence[Cell]) -> Verdict:
    found = value(cells, claim["of"]) - value(base, claim["of"])
    return Verdict(_agrees(found, claim["value"]), f"{found:+.1f} s")


def _agrees(found: float, paper: float) -> bool:
    return found * paper > 0 and max(found / paper, paper / found) <= AGREES


def _more(claim: Claim, cells: Sequence[Cell]) -> Verdict:
    along = claim.get("along", {})
    places = [{axis: label} for axis, labels in along.items() for label in labels] or [{}]
    ratios = [value(cells, {**claim["of"], **at}) / value(cells, {**claim["to"], **at}) for at in places]
    return Verdict(all(ratio > 1 for ratio in ratios), ", ".join(f"{ratio:.2f}" for ratio in ratios))


def _series(claim: Claim, cells: Sequence[Cell]) -> list[float]:
    ((axis, labels),) = claim["along"].items()
    return [value(cells, {**claim["of"], axis: label}) for label in labels]


def _falls(claim: Claim, cells: Sequence[Cell]) -> Verdict:
    found = _series(claim, cells)
    return Verdict(all(a > b for a, b in pairwise(found)), _words(found))


def _rises(claim: Claim, cells: Sequence[Cell]) -> Verdict:
    found = _series(claim, cells)
    return Verdict(all(a < b for a, b in pairwise(found)), _words(found))


def _level(claim: Claim, cells: Sequence[Cell]) -> Verdict:
    found = _series(claim, cells)
    return Verdict(max(found) <= claim["factor"] * min(found), _words(found))


def _close(claim: Claim, cells: Sequence[Cell]) -> Verdict:
    apart = abs(_accuracy(cells, claim["of"]) - _accuracy(cells, claim["to"]))
    return Verdict(apart < claim["value"], f"{100 * apart:.2f} points")


def _worse(claim: Claim, cells: Sequence[Cell]) -> Verdict:
    less = _accuracy(cells, claim["to"]) - _accuracy(cells, claim["of"])
    return Verdict(less > 0, f"{100 * less:.2f} points less")


def _words(values: Sequence[float]) -> str:
    return ", ".join(f"{rounded(one):g}" for one in values) + " s"


_KINDS: Final[Mapping[str, Callable[[Claim, Sequence[Cell]], Verdict]]] = {
    "ratio": _ratio,
    "more": _more,
    "falls": _falls,
    "rises": _rises,
    "level": _level,
    "close": _close,
    "worse": _worse,
}
