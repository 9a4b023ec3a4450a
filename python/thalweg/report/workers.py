"""Draws the work of each worker of an aggregation tree over time (LIFL figures 4 and 7c), from a run's rounds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from thalweg.record.facts import Facts
from thalweg.report.series import MOST_BARS, MOST_LANES, Bar, Timeline, natural
from thalweg.report.source import Run, json_object

# Kinds of work in the journal, each with its name in the plot.
CALLED: Final = {
    "start": "starting",
    "fold": "folding",
    "merge": "adding up sums",
    "commit": "handing over",
    "sums": "giving the sums",
    "mean": "taking the mean",
    "died": "died",
}
WAITING: Final = "waiting"
KINDS: Final = (WAITING, *CALLED.values())
COLOUR_OF: Final = {
    WAITING: "#c9ced4",
    "starting": "#b8860b",
    "folding": "#0a84c6",
    "adding up sums": "#7a5fb5",
    "handing over": "#e0782f",
    "giving the sums": "#009e73",
    "taking the mean": "#009e73",
    "died": "#d02060",
}
# If there is only one node, its name in a record is that of the server.
ONE_NODE: Final = "server"
# Separates the names of a node and of its worker.
WORKER: Final = " worker "


def has_workers(run: Run) -> bool:
    """Return whether workers folded a run's updates."""
    return run.plan.aggregation.shape == "tree"


def timeline(run: Run, most: int = MOST_BARS) -> Timeline:
    """Return the timeline of a run's workers: its first rounds and workers, so that there are about ``most`` bars."""
    begins = _begins(run)
    every: dict[str, None] = {}
    bars: list[Bar] = []
    starts: dict[int, float] = {}
    drawn, left_out, last = 0, 0, 0
    for row in run.rounds:
        number = row.round
        work = Facts(json_object(row.fold)).part("timeline")
        if not work:
            continue
        last = number
        if len(bars) >= most:
            continue
        own = list(_round(number, did(work), begins.get(number)))
        every |= dict.fromkeys(bar.lane for bar in own)
        bars += own
        starts |= {number: begins.get(number, min(bar.start for bar in own))} if own else {}
        left_out += work.whole("left_out") or 0
        drawn = number
    lanes = sorted(every, key=_place)
    shown = set(lanes[:MOST_LANES])
    notes = [f"rounds 1 to {drawn} of {last}"] if drawn < last else []
    notes += [f"{len(shown)} of {len(lanes)} workers"] if len(shown) < len(lanes) else []
    note = f"shown are {' and '.join(notes)}" if notes else ""
    note += f"{'; ' if note else ''}{left_out} stretches were not recorded" if left_out else ""
    return Timeline(lanes[:MOST_LANES], [bar for bar in bars if bar.lane in shown], starts, note or None)


def _place(lane: str) -> tuple[tuple[str, int, str], tuple[str, int, str]]:
    """Return a key that sorts each node before its workers."""
    node, _, worker = lane.partition(WORKER)
    return natural(node), natural(worker)


def _begins(run: Run) -> dict[int, float]:
    """Return the time of each round's first byte."""
    begins: dict[int, float] = {}
    for way in run.transfers:
        if way.send_start is not None:
            begins[way.round] = min(way.send_start, begins.get(way.round, math.inf))
    return begins


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of work of a worker, or of the node itself (``worker`` is 0).

    Times are on the server's clock of the run.
    """

    what: str
    start: float
    end: float
    node: str
    worker: int
    updates: int | None


def did(timeline: Facts) -> Iterator[Work]:
    """Yield the pieces of work that can be drawn. Others are skipped, because a journal may be damaged."""
    for one in timeline.parts("did"):
        what, start, end = one.text("what"), one.number("start"), one.number("end")
        if what in CALLED and start is not None and end is not None:
            node, worker = one.text("node") or ONE_NODE, one.whole("worker") or 0
            yield Work(what, start, end, node, worker, one.whole("updates"))


def _round(number: int, did: Iterable[Work], begin: float | None) -> Iterator[Bar]:
    """Yield the bars of one round: the work of workers, and their waiting between."""
    lanes: dict[str, list[Work]] = defaultdict(list)
    for one in did:
        lanes[f"{one.node}{WORKER}{one.worker}" if one.worker else one.node].append(one)
    for lane, stretches in lanes.items():
        yield from _lane(lane, number, sorted(stretches, key=lambda one: one.start), begin)


def _lane(lane: str, number: int, stretches: Sequence[Work], begin: float | None) -> Iterator[Bar]:
    reached = begin
    for one in stretches:
        if one.worker and reached is not None and one.start > reached and one.what != "start":
            yield Bar(lane, WAITING, reached, one.start, number)
        yield Bar(lane, CALLED[one.what], one.start, one.end, number, words=_words(one))
        reached = max(one.end, one.end if reached is None else reached)


def _words(one: Work) -> tuple[str, ...]:
    return (f"{one.updates} {'update' if one.updates == 1 else 'updates'}",) if one.updates else ()
