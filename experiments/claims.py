"""Reads the papers' claims, which are data, and judges whether a measurement confirms them.

``expected.json`` of a figure has ``paper`` and ``claims``. A claim has its text (``says``), the ``id`` of its line in
the requirements, a ``kind``, and places in the matrix. A place is a table of axes with a label each; ``*`` stands for
any label. ``number`` names the value of a cell that the claim is about: one of ``NUMBERS``, by default ``seconds`` of
communication. With ``base``, the name of another figure of the study, ``to`` is a place in that figure.

=============  ======================================================================================================
``ratio``      the sum of ``of`` over the sum of ``to`` agrees with the paper's ``value`` within a factor of 1.25. If
               the paper's ratio differs from 1 by more than 2 %, ours must differ from 1 in the same direction by as
               much
``reaches``    the same ratio; the paper says "up to ``value``": shown if ours is no less
``more``       the sum of ``of`` is more than 2 % above the sum of ``to``, at each label of ``along`` if that is
               given
``added``      the sum of ``of`` minus that of the figure ``base``, in seconds, agrees with ``value`` within a factor
               of 1.25
``falls``      the values fall from label to label of ``along``, by more than 2 % each
``rises``      the values rise in the same way
``level``      the largest value along ``along`` is at most ``factor`` times the least
``above``      each value of ``of`` is more than the paper's ``value``, or our ``least``, in the unit in which it is
               written
``below``      each value of ``of`` is less than ``value``, in the same unit
``about``      each value of ``of`` agrees with the paper's ``value`` within a factor of 1.25, in the same unit
``even``       Jain's index of each value of ``of`` is at least 0.9
``close``      the last accuracies of ``of`` and ``to`` differ by less than ``value``, a fraction
``worse``      the last accuracy of ``of`` is less than that of ``to``
=============  ======================================================================================================

A claim becomes a few numbers, each with bounds, and is judged over several runs. Each number's mean over runs has a 95
% confidence interval (Student's t; on logarithms for ratios). The intervals of one claim hold together with 95 %. The
verdict is yes if each interval lies within its bounds, no if one lies outside, and undecided otherwise. One run has no
interval, so it gives no verdict. Runs in virtual time hardly differ, so their intervals are short.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

from experiments.measured import Cell, rounded
from thalweg.ui.comparing import ALIKE, ALPHA, student

Claim = Mapping[str, Any]
# Two numbers agree if the larger one is at most this many times the smaller one.
AGREES: Final = 1.25
# One value counts as more than another from this ratio on.
MORE: Final = 1 + ALIKE
# The least Jain index at which flows count as equal.
EVEN: Final = 0.9
# Maximum rounding error of a sum of floats.
ROUNDED: Final = 1e-9
# The numbers of a cell that a claim may be about, each with the factor and the unit in which it is written.
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
    "active": (1.0, " aggregators"),
    "hand_over": (1e3, " ms"),
    "taken": (1e3, " ms"),
    "cpu": (1.0, " s"),
    "off": (100.0, " %"),
    "created": (1.0, " aggregators"),
    "nodes_used": (1.0, " nodes"),
    "time_to": (1.0, " s"),
    "cpu_to": (1.0, " s"),
}
YES: Final = "yes"
NO: Final = "no"
UNDECIDED: Final = "undecided"
ONE_RUN: Final = "one run"
NOT_JUDGED: Final = "not judged"
NOT_MEASURED: Final = "not measured"


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim (yes, no, undecided, one run, not judged or not measured), and its numbers as text."""

    seen: str
    words: str
    runs: int = 0


@dataclass(frozen=True)
class Part:
    """A number of one run, with the bounds within which the claim holds."""

    value: float
    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True)
class Found:
    """A claim's numbers in one run: those with bounds, and those to print. ``form`` formats the latter."""

    parts: Sequence[Part]
    shown: Sequence[float]
    form: Callable[[float], str]
    unit: str = ""


class MissingError(Exception):
    """A place of the matrix has no value."""


class NotKeptError(Exception):
    """A cell has several runs, but the file has only their median."""


def read(file: Path) -> list[Claim]:
    """Return the claims of a figure."""
    claims: list[Claim] = json.loads(file.read_text())["claims"]
    return claims


def judge(claim: Claim, cells: Sequence[Cell], base: Sequence[Cell]) -> Verdict:
    """Return the verdict on a claim from ``cells``. ``base`` has the cells of the figure that the claim names."""
    try:
        runs = [_KINDS[claim["kind"]](claim, *of) for of in _by_run(claim, cells, base)]
    except MissingError as error:
        return Verdict(NOT_MEASURED, f"without {error}")
    except NotKeptError as error:
        return Verdict(NOT_JUDGED, f"of {error} only the median was kept")
    return Verdict(_seen(runs), _words(runs), len(runs))


def rule(claim: Claim) -> str:
    """Return the cells that a claim is about, and the bounds within which it holds."""
    return f"{_subject(claim)} {_BOUNDS[claim['kind']](claim)}"


def value(cells: Sequence[Cell], place: Mapping[str, str], number: str = "seconds") -> float:
    """Return the sum of a number of all cells at a place. Raises MissingError."""
    return sum(_each(cells, place, number))


def _by_run(claim: Claim, cells: Sequence[Cell], base: Sequence[Cell]) -> list[tuple[Sequence[Cell], Sequence[Cell]]]:
    """Return, for each run that all these cells have, the claim's cells and the cells of its base."""
    places = [claim["of"], *([claim["to"]] if "to" in claim else [])]
    mine = [cell for cell in cells if any(_is_of(claim, cell, place) for place in places)]
    other = [cell for cell in base if any(cell.is_at(place) for place in places)]
    count = min((cell.runs for cell in [*mine, *other]), default=1)
    return [(_in_run(mine, at), _in_run(other, at)) for at in range(max(1, count))]


def _is_of(claim: Claim, cell: Cell, place: Mapping[str, str]) -> bool:
    along = claim.get("along", {})
    return cell.is_at(place) and all(cell.labels.get(axis) in labels for axis, labels in along.items())


def _in_run(cells: Sequence[Cell], at: int) -> list[Cell]:
    cells_of_run = [cell.in_run(at) for cell in cells]
    for cell, one in zip(cells, cells_of_run, strict=True):
        if one is None:
            raise NotKeptError(f"{cell.runs} runs of {', '.join(cell.labels.values())}")
    return [cell for cell in cells_of_run if cell is not None]


def _seen(runs: Sequence[Found]) -> str:
    if len(runs) < 2:
        return ONE_RUN
    columns = list(zip(*(run.parts for run in runs), strict=True))
    inside = [_inside(parts, len(columns)) for parts in columns]
    return NO if False in inside else UNDECIDED if None in inside else YES


def _inside(parts: Sequence[Part], numbers: int) -> bool | None:
    """Return whether the interval of a number over runs lies within its bounds; None if it overlaps a bound.

    ``numbers``: how many intervals hold together.
    """
    low, high = parts[0].low, parts[0].high
    values = [part.value for part in parts]
    logs = min(*values, low if math.isfinite(low) else 1.0) > 0
    if logs:
        values, low, high = [math.log(value) for value in values], _log(low), _log(high)
    reach = student(1 - ALPHA / numbers, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    least, most = fmean(values) - reach, fmean(values) + reach
    if least > high + ROUNDED or most < low - ROUNDED:
        return False
    return True if low - ROUNDED <= least and most <= high + ROUNDED else None


def _log(value: float) -> float:
    return math.log(value) if 0 < value < math.inf else math.inf if value > 0 else -math.inf


def _words(runs: Sequence[Found]) -> str:
    """Return the numbers to print: the mean over runs, with the least and the most."""
    columns = zip(*(run.shown for run in runs), strict=True)
    words = ", ".join(_spread(column, runs[0].form) for column in columns) + runs[0].unit
    return words if len(runs) < 2 else f"{words}; {len(runs)} runs"


def _spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    middle, least, most = form(fmean(values)), form(min(values)), form(max(values))
    return middle if least == most else f"{middle} ({least} to {most})"


def _each(cells: Sequence[Cell], place: Mapping[str, str], number: str) -> list[float]:
    values = [cell.numbers.get(number) for cell in cells if cell.is_at(place)]
    if not values or None in values:
        raise MissingError(", ".join(place.values()) or "the cells")
    return [float(one) for one in values if one is not None]


def _accuracy(cells: Sequence[Cell], place: Mapping[str, str]) -> float:
    series = [cell.numbers["accuracy"] for cell in cells if cell.is_at(place)]
    if len(series) != 1 or not series[0]:
        raise MissingError(", ".join(place.values()))
    return float(series[0][-1])


def _number(claim: Claim) -> str:
    return str(claim.get("number", "seconds"))


def _quotient(claim: Claim, cells: Sequence[Cell], base: Sequence[Cell], at: Mapping[str, str]) -> float:
    number = _number(claim)
    beside = base if "base" in claim else cells
    return value(cells, {**claim["of"], **at}, number) / value(beside, {**claim["to"], **at}, number)


def _ratio(claim: Claim, cells: Sequence[Cell], base: Sequence[Cell]) -> Found:
    ratio = _quotient(claim, cells, base, {})
    return Found([Part(ratio, *_agreeing(claim["value"]))], [ratio], _two)


def _agreeing(paper: float) -> tuple[float, float]:
    """Return the bounds of a ratio that agrees with the paper's. It must also be on the same side of 1."""
    low, high = paper / AGREES, paper * AGREES
    return (max(low, MORE), high) if paper > MORE else (low, min(high, 1 / MORE)) if paper < 1 / MORE else (low, high)


def _reaches(claim: Claim, cells: Sequence[Cell], base: Sequence[Cell]) -> Found:
    ratio = _quotient(claim, cells, base, {})
    return Found([Part(ratio, low=claim["value"])], [ratio], _two)


def _more(claim: Claim, cells: Sequence[Cell], base: Sequence[Cell]) -> Found:
    ratios = [_quotient(claim, cells, base, at) for at in _along(claim)]
    return Found([Part(ratio, low=MORE) for ratio in ratios], ratios, _two)


def _along(claim: Claim) -> list[dict[str, str]]:
    along = claim.get("along", {})
    return [{axis: label} for axis, labels in along.items() for label in labels] or [{}]


def _added(claim: Claim, cells: Sequence[Cell], base: Sequence[Cell]) -> Found:
    difference, paper = value(cells, claim["of"]) - value(base, claim["of"]), claim["value"]
    low, high = sorted((paper / AGREES, paper * AGREES))
    return Found([Part(difference, low, high)], [difference], lambda one: f"{one:+.1f}", " s")


def _series(claim: Claim, cells: Sequence[Cell]) -> list[float]:
    return [value(cells, {**claim["of"], **at}, _number(claim)) for at in _along(claim)]


def _falls(claim: Claim, cells: Sequence[Cell], _base: Sequence[Cell]) -> Found:
    values = _series(claim, cells)
    return _written(claim, values, [Part(a / b, low=MORE) for a, b in pairwise(values)])


def _rises(claim: Claim, cells: Sequence[Cell], _base: Sequence[Cell]) -> Found:
    values = _series(claim, cells)
    return _written(claim, values, [Part(b / a, low=MORE) for a, b in pairwise(values)])


def _level(claim: Claim, cells: Sequence[Cell], _base: Sequence[Cell]) -> Found:
    values = _series(claim, cells)
    return _written(claim, values, [Part(max(values) / min(values), high=claim["factor"])])


def _close(claim: Claim, cells: Sequence[Cell], _base: Sequence[Cell]) -> Found:
    apart = _accuracy(cells, claim["of"]) - _accuracy(cells, claim["to"])
    return Found([Part(apart, -claim["value"], claim["value"])], [apart], _points, " points")


def _worse(claim: Claim, cells: Sequence[Cell], _base: Sequence[Cell]) -> Found:
    apart = _accuracy(cells, claim["of"]) - _accuracy(cells, claim["to"])
    return Found([Part(apart, high=-2 * ROUNDED)], [apart], _points, " points")


def _above(claim: Claim, cells: Sequence[Cell], _base: Sequence[Cell]) -> Found:
    least = claim.get("value", claim.get("least"))
    return _of_each(claim, cells, low=least)


def _below(claim: Claim, cells: Sequence[Cell], _base: Sequence[Cell]) -> Found:
    return _of_each(claim, cells, high=claim["value"])


def _about(claim: Claim, cells: Sequence[Cell], _base: Sequence[Cell]) -> Found:
    return _of_each(claim, cells, low=claim["value"] / AGREES, high=claim["value"] * AGREES)


def _of_each(claim: Claim, cells: Sequence[Cell], low: float = -math.inf, high: float = math.inf) -> Found:
    values = _each(cells, claim["of"], _number(claim))
    factor, _ = NUMBERS[_number(claim)]
    return _written(claim, values, [Part(one * factor, low, high) for one in values])


def _even(claim: Claim, cells: Sequence[Cell], _base: Sequence[Cell]) -> Found:
    indices = _each(cells, claim["of"], "jain")
    return Found([Part(one, low=EVEN) for one in indices], indices, lambda one: f"{one:.3f}")


def _written(claim: Claim, values: Sequence[float], parts: Sequence[Part]) -> Found:
    factor, unit = NUMBERS[_number(claim)]
    return Found(parts, values, lambda one: f"{rounded(factor * one):g}", unit)


def _two(value: float) -> str:
    return f"{value:.2f}"


def _points(value: float) -> str:
    return f"{100 * value:+.2f}"


def _subject(claim: Claim) -> str:
    of, to = _place(claim["of"]), _place(claim.get("to", {}))
    of = f"{of} over {to}" if claim["kind"] in _RATIOS else f"{of} less {to}" if claim["kind"] in _POINTS else of
    where = "" if "base" not in claim else f" of {claim['base']}"
    each = [f"{axis} {', '.join(labels)}" for axis, labels in claim.get("along", {}).items()]
    of = f"{of} less the same" if claim["kind"] == "added" else of
    number = f"{claim['number']} of " if "number" in claim else ""
    return f"{number}{of}{where}" + (f", at {each[0]}" if each else "")


def _place(place: Mapping[str, str]) -> str:
    labels = [label.removeprefix("payload:") for label in place.values() if label != "*"]
    words = [f"({label})" if ", " in label else label for label in labels]
    return " ".join(words) or "all cells"


def _bounds(claim: Claim) -> str:
    low, high = _agreeing(claim["value"])
    return f"{low:.3g} to {high:.3g}"


def _unit(claim: Claim) -> str:
    return NUMBERS[_number(claim)][1]


_RATIOS: Final = ("ratio", "reaches", "more")
_POINTS: Final = ("close", "worse")
_KINDS: Final[Mapping[str, Callable[[Claim, Sequence[Cell], Sequence[Cell]], Found]]] = {
    "ratio": _ratio,
    "reaches": _reaches,
    "more": _more,
    "added": _added,
    "falls": _falls,
    "rises": _rises,
    "level": _level,
    "above": _above,
    "below": _below,
    "about": _about,
    "even": _even,
    "close": _close,
    "worse": _worse,
}
# The result of each kind's ``rule``.
_BOUNDS: Final[Mapping[str, Callable[[Claim], str]]] = {
    "ratio": lambda claim: f"is {_bounds(claim)}",
    "reaches": lambda claim: f"is at least {claim['value']:g}",
    "more": lambda _claim: f"is more than {MORE:g}",
    "added": lambda claim: f"is {claim['value'] / AGREES:.3g} to {claim['value'] * AGREES:.3g} s",
    "falls": lambda _claim: f"falls by more than {100 * ALIKE:g} % each time",
    "rises": lambda _claim: f"rises by more than {100 * ALIKE:g} % each time",
    "level": lambda claim: f"differs by at most a factor of {claim['factor']:g}",
    "above": lambda claim: f"is more than {claim.get('value', claim.get('least')):g}{_unit(claim)}",
    "below": lambda claim: f"is less than {claim['value']:g}{_unit(claim)}",
    "about": lambda claim: f"is {claim['value'] / AGREES:.3g} to {claim['value'] * AGREES:.3g}{_unit(claim)}",
    "even": lambda _claim: f"has a Jain's index of at least {EVEN:g}",
    "close": lambda claim: f"is within {100 * claim['value']:g} points",
    "worse": lambda _claim: "is below 0 points",
}
