"""The data of the plots, for the page and for the figures, with limits on their size."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from thalweg.report.split import PARTS
from thalweg.report.values import members

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from thalweg.record.rows import Transfer
    from thalweg.report.source import Run, Samples
    from thalweg.report.values import Compared, RoundNumbers

MOST_POINTS: Final = 2000
MOST_BARS: Final = 3000
MOST_LANES: Final = 64
MOST_SERIES: Final = 16
MOST_BINS: Final = 2000
LEAST_BIN: Final = 0.02
# A busy link is sampled every 10 ms. So the bytes between two samples are taken as carried within this time before the
# later one.
SAMPLING: Final = 0.01
KINDS: Final = ("down", "training", "up", "broken off")

Item = TypeVar("Item")
# A function that returns one number of a round, or None.
Number: TypeAlias = "Callable[[RoundNumbers], float | None]"


def thinned(items: Sequence[Item], most: int = MOST_POINTS) -> list[Item]:
    """Return at most ``most`` items in order, evenly spaced, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


@dataclass(frozen=True)
class Group:
    """Communication of all runs with the same transport and condition: network, repair, model, clients."""

    transport: str
    condition: str
    runs: int
    seconds: Sequence[float]
    bound: float | None

    @property
    def median(self) -> float:
        """The median over rounds."""
        return median(self.seconds)


def groups(runs: Sequence[Compared]) -> list[Group]:
    """Return the groups of runs (their numbers) that have rounds, in order of appearance."""
    made = []
    for cell in by_cell(runs):
        each = [(row.communication_seconds, row.bound_seconds) for row in cell.rounds]
        seconds = [value for value, _ in each if value is not None]
        bounds = [bound for value, bound in each if value is not None and bound is not None]
        if seconds:
            made.append(
                Group(cell.transport, cell.condition, len(cell.runs), seconds, median(bounds) if bounds else None)
            )
    return made


@dataclass(frozen=True, slots=True)
class Point:
    """A round of several ``runs`` in a plot: medians over runs, and the minimum and maximum of ``y``."""

    round: int
    x: float
    y: float
    runs: int
    least: float
    most: float


def _point(number: int, pairs: Sequence[tuple[float, float]]) -> Point:
    values = [value for _, value in pairs]
    return Point(number, median(at for at, _ in pairs), median(values), len(pairs), min(values), max(values))


@dataclass(frozen=True)
class Cell:
    """Runs with the same transport and condition. ``name`` distinguishes it from the other cells of the page."""

    name: str
    transport: str
    condition: str
    runs: Sequence[Compared]

    @property
    def rounds(self) -> list[RoundNumbers]:
        """All rounds of all runs."""
        return [row for run in self.runs for row in run.each_round]

    def over_rounds(self, x: Number, y: Number) -> list[Point]:
        """Return a point for each round that has both numbers."""
        by_round: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for row in self.rounds:
            at, value = x(row), y(row)
            if at is not None and value is not None:
                by_round[row.round].append((at, value))
        return [_point(number, pairs) for number, pairs in sorted(by_round.items())]


def by_cell(runs: Sequence[Compared]) -> list[Cell]:
    """Return the cells of runs (their numbers), by network, in order of appearance."""
    by_condition: dict[tuple[str, str], list[Compared]] = defaultdict(list)
    names = conditions(runs)
    for run, condition in zip(runs, names, strict=True):
        by_condition[run.transport, condition].append(run)
    order = list(dict.fromkeys(names))
    transports, networks = ({key[part] for key in by_condition} for part in (0, 1))

    def name(transport: str, condition: str) -> str:
        words = [transport] * (len(transports) > 1 or len(networks) == 1) + [condition] * (len(networks) > 1)
        return ", ".join(words)

    cells = [Cell(name(*key), *key, members) for key, members in by_condition.items()]
    return sorted(cells, key=lambda cell: order.index(cell.condition))


@dataclass(frozen=True)
class RoundTimes:
    """The times of a cell's rounds, in seconds: ``seconds`` of each round, and the means of its parts in ``split``.

    ``floor`` is the median of training plus the lower bound of communication.
    """

    name: str
    transport: str
    seconds: Sequence[float]
    split: Mapping[str, float] | None
    floor: float | None


def round_times(runs: Sequence[Compared]) -> list[RoundTimes]:
    """Return the times of rounds by cell, without cells that have no rounds."""
    made = [_round_times(cell) for cell in by_cell(runs)]
    return [one for one in made if one.seconds]


def _round_times(cell: Cell) -> RoundTimes:
    rounds = cell.rounds
    floors = [(row.compute_seconds or 0.0) + row.bound_seconds for row in rounds if row.bound_seconds is not None]
    seconds = [row.seconds for row in rounds if row.seconds is not None]
    splits = [row.split for row in rounds if row.split is not None]
    split = {part: fmean(one[part] for one in splits) for part in PARTS} if splits else None
    return RoundTimes(cell.name, cell.transport, seconds, split, median(floors) if floors else None)


def conditions(runs: Sequence[Compared]) -> list[str]:
    """Return a name of each run's network, with the other properties of the job that differ between runs."""
    models, clients = {run.model for run in runs}, {run.clients for run in runs}

    def name(run: Compared) -> str:
        more = [run.model] * (len(models) > 1) + [members(run.clients, run.shape)] * (len(clients) > 1)
        return ", ".join(word for word in (run.network, run.repair, run.setting, *more) if word)

    return [name(run) for run in runs]


@dataclass(frozen=True)
class Bar:
    """A bar in a lane of a timeline. ``row`` is its transfer, if it shows one; ``words`` are further details."""

    lane: str
    kind: str
    start: float
    end: float
    round: int
    row: Transfer | None = None
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Timeline:
    """When parties sent, trained and received. ``note`` says what was left out; ``starts`` are the begins of rounds."""

    lanes: Sequence[str]
    bars: Sequence[Bar]
    starts: Mapping[int, float]
    note: str | None


def timeline(run: Run, most: int = MOST_BARS) -> Timeline:
    """Return the timeline of a run: its first rounds and clients, so that there are about ``most`` bars."""
    every = sorted({transfer.client for transfer in run.transfers}, key=natural)
    lanes = every[:MOST_LANES]
    shown = set(lanes)
    numbers = sorted({transfer.round for transfer in run.transfers})
    kept = numbers[: max(1, most // (3 * max(1, len(lanes))))]
    chosen = [t for t in run.transfers if t.client in shown and t.round <= (kept[-1] if kept else 0)]
    bars = [bar for transfer in chosen if (bar := _transfer(transfer)) is not None]
    bars += _training(run, chosen)
    starts: dict[int, float] = {}
    for bar in bars:
        starts[bar.round] = min(bar.start, starts.get(bar.round, math.inf))
    left_out = [f"rounds 1 to {kept[-1]} of {numbers[-1]}"] if len(kept) < len(numbers) else []
    left_out += [f"{len(lanes)} of {len(every)} clients"] if len(lanes) < len(every) else []
    note = f"shown are {' and '.join(left_out)}" if left_out else None
    return Timeline(lanes, sorted(bars, key=lambda bar: (bar.start, bar.lane, bar.kind)), starts, note)


def _transfer(row: Transfer) -> Bar | None:
    moments = (row.send_start, row.send_end, row.receive_start, row.receive_end)
    times = [time for time in moments if time is not None]
    if not times:
        return None
    kind = row.direction if row.complete is not False and row.direction in KINDS else "broken off"
    start = times[0] if row.send_start is not None else min(times)
    return Bar(row.client, kind, start, max(times), row.round, row)


def _training(run: Run, transfers: Sequence[Transfer]) -> list[Bar]:
    """Return the bars of training: each from the end of the model's transfer to the start of the update's transfer."""
    if run.trains_nothing:
        return []
    trained = {(part.round, part.client) for part in run.participants if part.train_seconds is not None}
    begins = {(t.round, t.client): t.receive_end for t in transfers if t.direction == "down"}
    bars = []
    for transfer in transfers:
        key = transfer.round, transfer.client
        start, end = begins.get(key), transfer.send_start
        if transfer.direction == "up" and key in trained and start is not None and end is not None and end > start:
            bars.append(Bar(transfer.client, "training", start, end, transfer.round))
    return bars


def natural(name: str) -> tuple[str, int, str]:
    """Return a key that sorts client-2 before client-10."""
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return stem, int(digits[:18] or -1), name


@dataclass(frozen=True)
class LinkSeries:
    """One direction of a link in bins of time; ``edges`` has one more than the others. NaN means unknown.

    ``rate`` is the configured rate and ``throughput`` the carried bytes, both in bits a second. ``queue_bytes`` is the
    longest queue in each bin.
    """

    name: str
    link: str
    direction: str
    edges: NDArray[np.float64]
    throughput: NDArray[np.float64]
    queue_bytes: NDArray[np.float64]
    rate: NDArray[np.float64]


def links_over_time(run: Run, most_bins: int = MOST_BINS) -> tuple[list[LinkSeries], str | None]:
    """Return the busiest directions of links in bins of the same width, and a note about what was left out."""
    if not run.samples:
        return [], None
    busiest = sorted(run.samples, key=lambda one: -one.bytes_out[-1])[:MOST_SERIES]
    begin = min(float(one.seconds[0]) for one in busiest) - SAMPLING
    end = max(float(one.seconds[-1]) for one in busiest)
    width = max(LEAST_BIN, _round_up((end - begin) / most_bins))
    bins = max(1, math.ceil((end - begin) / width - 1e-9))
    chosen = sorted(busiest, key=lambda one: (natural(one.link), one.direction))
    notes = [f"in bins of {1000 * width:g} ms"]
    if len(busiest) < len(run.samples):
        notes.append(f"the {len(busiest)} busiest of {len(run.samples)} directions of links")
    ends = {(row.link, row.direction): f"{row.source} to {row.target}" for row in run.links}
    names = [ends.get((one.link, one.direction), f"{one.link} {one.direction}") for one in chosen]
    return [_binned(one, name, begin, width, bins) for one, name in zip(chosen, names, strict=True)], ", ".join(notes)


def _round_up(width: float) -> float:
    """Return the smallest of 1, 2, 5, 10, ... that is at least ``width``."""
    if width <= 0:
        return 0.0
    decade = 10.0 ** math.floor(math.log10(width))
    return next(decade * step for step in (1, 2, 5, 10) if decade * step >= width * (1 - 1e-9))


def _binned(one: Samples, name: str, begin: float, width: float, bins: int) -> LinkSeries:
    import numpy as np

    edges = np.linspace(begin, begin + width * bins, bins + 1)
    # The sum of bytes over time as a line of points. Between samples that are far apart the link was idle, so the line
    # rises only shortly before the later sample.
    before = np.concatenate(([begin], one.seconds[:-1]))
    rises = np.maximum(before, one.seconds - 2 * SAMPLING)
    sums = np.concatenate(([0.0], one.bytes_out))
    times = np.column_stack((rises, one.seconds)).ravel()
    carried = np.interp(edges, times, np.column_stack((sums[:-1], sums[1:])).ravel())
    indices = np.clip(((one.seconds - begin) / width).astype(np.int64), 0, bins - 1)
    # A queue keeps its length until the next sample, because each change is sampled.
    queue = np.zeros(bins)
    np.maximum.at(queue, indices, one.queue_bytes)
    last = np.searchsorted(one.seconds, edges[1:], side="left")
    seen = np.isin(np.arange(bins), indices)
    held = np.where(last > 0, one.queue_bytes[np.maximum(last - 1, 0)], 0.0)
    rate = np.where(last > 0, one.rate[np.maximum(last - 1, 0)], one.rate[0])
    throughput = np.diff(carried) * np.float64(8 / width)
    return LinkSeries(name, one.link, one.direction, edges, throughput, np.where(seen, queue, held), rate)


def distinct_rates(shown: Sequence[LinkSeries], most: int = 4) -> list[LinkSeries]:
    """Return links whose rates over time differ from each other; none if there are too many to distinguish."""
    limited = [one for one in shown if any(map(math.isfinite, one.rate.tolist()))]
    kept = list({one.rate.tobytes(): one for one in limited}.values())
    return kept if len(kept) <= most else []
