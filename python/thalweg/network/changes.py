"""Changes of links over time. ``expand`` turns a plan's changes and its trace into whole shapes with their times."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Final

from thalweg.errors import PlanError
from thalweg.network.shape import Keys, Shape, keys_of
from thalweg.network.topology import Pair, Wire, pair_of_profile, unknown
from thalweg.sections.network import ChangeSection, NetworkSection, TraceSection
from thalweg.ui.units import parse_rate

MOST: Final = 100_000
LARGEST_TRACE: Final = 16 << 20
DIRECTIONS: Final = {"up": "ab", "down": "ba"}


@dataclass(frozen=True)
class Change:
    """A link's shape from ``at`` seconds on. ``direction``: ab, ba, or None for both."""

    at: float
    link: str
    direction: str | None
    shape: Shape


@dataclass(frozen=True)
class _Event:
    """A change as the plan has it: a pattern of links, and the keys or the profile that it sets.

    ``place`` names the section and key of the plan, for error messages.
    """

    at: float
    pattern: str
    direction: str | None
    keys: Keys
    profile: str | None
    place: str

    def apply(self, state: Pair) -> Pair:
        """Return a link's keys after this change. ``state`` has those before it."""
        base = state if self.profile is None else pair_of_profile(self.profile)
        up = self.keys.over(base.up) if self.direction != "down" else state.up
        down = self.keys.over(base.down) if self.direction != "up" else state.down
        return Pair(up, down)


def expand(section: NetworkSection, wires: Sequence[Wire], seed: int) -> tuple[Change, ...]:
    """Return all changes in order of time, each with the link's whole new shape. Raises PlanError."""
    events = [*_traced(section.trace), *_changed(section.changes or ())]
    state = {wire.name: wire.keys for wire in wires}
    steady = {wire.name for wire in wires if wire.steady}
    made: list[Change] = []
    for event in sorted(events, key=lambda event: event.at):
        for link in _matching(event, list(state), steady):
            state[link] = event.apply(state[link])
            made += _shaped(event, link, state[link], section.time_scale, seed)
        if len(made) > MOST:
            raise PlanError(f"the network has more than {MOST} changes", "Shorten the trace, or repeat it less")
    return tuple(made)


def _shaped(event: _Event, link: str, state: Pair, scale: float, seed: int) -> Iterator[Change]:
    at = event.at * scale
    if event.direction is not None:
        keys = state.up if event.direction == "up" else state.down
        yield Change(at, link, DIRECTIONS[event.direction], keys.shape(seed, link))
        return
    up, down = state.up.shape(seed, link), state.down.shape(seed, link)
    if up == down:
        yield Change(at, link, None, up)
    else:
        yield Change(at, link, DIRECTIONS["up"], up)
        yield Change(at, link, DIRECTIONS["down"], down)


def _matching(event: _Event, links: Sequence[str], steady: Collection[str]) -> list[str]:
    matching = [
        link for link in links if link == event.pattern or (link not in steady and fnmatchcase(link, event.pattern))
    ]
    if not matching:
        raise unknown("link", event.pattern, links, event.place)
    return matching


def _changed(changes: Sequence[ChangeSection]) -> Iterator[_Event]:
    for number, change in enumerate(changes, 1):
        place = f"[[network.changes]] {number}"
        keys = keys_of(change, place, f"change {number}")
        if change.direction is not None and "rtt" in keys.values:
            raise PlanError(f"{place} has an rtt for one direction", "Give delay, the time one way")
        if not keys.values and change.profile is None:
            raise PlanError(f"{place} changes nothing", "Give a key of a link as rate, or down = true, or a profile")
        yield _Event(change.at, change.link, change.direction, keys, change.profile, place)


def _traced(trace: TraceSection | None) -> Iterator[_Event]:
    if trace is None:
        return
    rows = read_trace(Path(trace.file))
    place = "[network.trace]"
    if len(rows) * trace.repeat > MOST:
        raise PlanError(
            f"{place}: {len(rows)} lines played {trace.repeat} times are more than {MOST}", "Repeat it less"
        )
    # A trace does not say how long its last rate holds: take the time that the rate before it held.
    length = rows[-1][0] + (rows[-1][0] - rows[-2][0] if len(rows) > 1 else 0.0)
    if trace.repeat > 1 and length <= 0:
        raise PlanError(f"{place}: a trace of one moment cannot be repeated", "Add lines, or remove repeat")
    for repetition in range(trace.repeat):
        for seconds, rate in rows:
            keys = Keys({"rate": rate, "down": False} if rate else {"down": True}, place)
            yield _Event(repetition * length + seconds, trace.link, trace.direction, keys, None, place)


def read_trace(path: Path) -> list[tuple[float, int]]:
    """Return a trace's rows of seconds and bits a second. A rate of 0 means that the link is down. Raises PlanError."""
    try:
        if path.stat().st_size > LARGEST_TRACE:
            raise PlanError(f"the trace {path} has more than {LARGEST_TRACE} bytes", "Shorten it")
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise PlanError(f"cannot read the trace {path}: {error.strerror}", "Give the path of a CSV file") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"the trace {path} is not text in UTF-8", "Save it as UTF-8") from error
    numbered = [(number, line.partition("#")[0].strip()) for number, line in enumerate(lines, 1)]
    rows = [_row(path, number, line) for number, line in numbered if line and line.replace(" ", "") != "seconds,rate"]
    if not rows:
        raise PlanError(f"the trace {path} is empty", "Write lines of seconds,rate")
    for (before, _), (after, _) in pairwise(rows):
        if after <= before:
            raise PlanError(f"the trace {path} goes back from {before} to {after} s", "Order its lines by time")
    return rows


def _row(path: Path, number: int, line: str) -> tuple[float, int]:
    try:
        seconds, rate = line.split(",")
        at, bits = float(seconds), parse_rate(rate.strip())
    except ValueError as error:
        raise PlanError(f"{path}:{number}: {line!r} is not seconds,rate", "Write a line as 0.5,20mbit") from error
    if not math.isfinite(at) or not 0 <= at <= 1e9:
        raise PlanError(f"{path}:{number}: {seconds} is no time", "Write seconds from 0 on")
    return at, bits
