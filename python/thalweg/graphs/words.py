"""Parses the name of a graph in a plan, such as ``3-regular``, ``small-world:4,0.1`` or ``random:0.3,dynamic``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from thalweg.errors import PlanError

FORMS: Final = (
    "ring, K-regular (as 3-regular), torus, star, full, small-world:K,P (as small-world:4,0.1), random:P (as "
    "random:0.3), exponential, one-peer or file:PATH; with ,dynamic behind K-regular, small-world and random a new "
    "graph each iteration"
)
PLAIN: Final = ("ring", "torus", "star", "full", "exponential", "one-peer")
# The graphs that are drawn by the seed, so that each iteration can have another graph.
DRAWN: Final = ("regular", "small-world", "random")
DYNAMIC: Final = ",dynamic"
_REGULAR: Final = re.compile(r"([0-9]{1,6})-regular", re.ASCII)
_SMALL_WORLD: Final = re.compile(r"small-world:([0-9]{1,6}),([0-9]{1,3}(?:\.[0-9]{1,9})?)", re.ASCII)
_RANDOM: Final = re.compile(r"random:([0-9]{1,3}(?:\.[0-9]{1,9})?)", re.ASCII)


@dataclass(frozen=True)
class Word:
    """The parsed name of a graph.

    ``kind`` is one of PLAIN or DRAWN, or ``file``. ``degree`` is K of ``regular`` and ``small-world``, ``probability``
    P of ``small-world`` and ``random``, ``path`` that of ``file``. ``dynamic``: a new graph for each iteration.
    """

    text: str
    kind: str
    degree: int = 0
    probability: float = 0.0
    path: str | None = None
    dynamic: bool = False


def parse(text: str) -> Word:
    """Parse the name of a graph. Raises PlanError for anything that FORMS does not list."""
    if text.startswith("file:"):
        # Only drawn graphs have the suffix ",dynamic". The path of a file may end like that by chance.
        return Word(text, "file", path=_path(text))
    word = _plain(text, text.removesuffix(DYNAMIC), dynamic=text.endswith(DYNAMIC))
    if word.dynamic and word.kind not in DRAWN:
        raise PlanError(
            f"the graph {word.text.removesuffix(DYNAMIC)} is not drawn by the seed, and so cannot be dynamic",
            f"Remove {DYNAMIC}, or take 3-regular{DYNAMIC}",
        )
    return word


def _plain(text: str, name: str, *, dynamic: bool) -> Word:
    if name in PLAIN:
        return Word(text, name, dynamic=dynamic)
    if match := _REGULAR.fullmatch(name):
        return Word(text, "regular", degree=int(match[1]), dynamic=dynamic)
    if match := _SMALL_WORLD.fullmatch(name):
        return Word(text, "small-world", int(match[1]), _probability(name, match[2]), dynamic=dynamic)
    if match := _RANDOM.fullmatch(name):
        return Word(text, "random", probability=_probability(name, match[1]), dynamic=dynamic)
    near = get_close_matches(name, [*PLAIN, "3-regular", "small-world:4,0.1", "random:0.3", "file:PATH"], n=1)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    raise PlanError(f"unknown graph {text!r}", f"{guess}Write {FORMS}")


def _probability(name: str, text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise PlanError(f"the graph {name} has a probability of {text}", "Give 0 to 1")
    return value


def _path(text: str) -> str:
    path = text.removeprefix("file:")
    if not path:
        raise PlanError("the graph file: names no file", "Write file:PATH, as file:graphs/16_regular.edges")
    return path
