"""Reads and draws traces: a sender's estimates of its path, written by the option ``trace`` of a transport."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

from thalweg import wire
from thalweg.errors import RecordError
from thalweg.report.charts import Chart, Trace
from thalweg.report.colours import colour
from thalweg.report.text import plain, table
from thalweg.report.values import TracedLink
from thalweg.ui.units import format_bytes, format_seconds

# Maximum number of stored lines of a link. If there are more, every second line is stored, or every fourth etc.
MOST_LINES: Final = 20_000
# Maximum number of points of a link in a plot; maximum number of links in a file.
MOST_POINTS: Final = 500
MOST_LINKS: Final = 1024
# Seconds without a line that count as a pause: after a line that says "idle", and after any line.
IDLE_PAUSE: Final = 0.05
PAUSE: Final = 2.0
NUMBERS: Final = (
    "rtt", "rtt_latest", "rtt_min", "jitter_allowance", "delivery_rate", "pacing_rate", "window", "in_flight",
    "delivered", "lost", "path_loss",
)  # fmt: skip
WAITS: Final = {
    "pace": "the pace allows no more",
    "window": "an acknowledgement is missing",
    "buffer": "the peer's buffer is full",
    "idle": "it sends, or has nothing to send",
}
UNKNOWN: Final = "A trace is what --option trace=FILE of udp, ltp or unifl writes; see docs/how-to/measure.md"


@dataclass(frozen=True, slots=True)
class Line:
    """The estimates of one end at one time, in seconds and bytes. ``waits`` is None if it is unknown."""

    time: float
    waits: str | None
    values: Mapping[str, float | None]


@dataclass
class LinkTrace:
    """The lines of one end of a link (thinned if there are many), and the name of their file."""

    file: str
    link: str
    peer: str
    lines: list[Line] = field(default_factory=list)
    stride: int = 1
    seen: int = 0

    def add(self, line: Line) -> None:
        """Store the line if it is one of every ``stride`` lines."""
        if self.seen % self.stride == 0:
            self.lines.append(line)
        self.seen += 1
        if len(self.lines) > MOST_LINES:
            self.lines, self.stride = self.lines[::2], 2 * self.stride

    def numbers(self) -> TracedLink:
        """Return the numbers of the whole link."""
        rtt_values = [line.values["rtt_latest"] for line in self.lines]
        rtts = [rtt for rtt in rtt_values if rtt is not None]
        least = [rtt for line in self.lines if (rtt := line.values["rtt_min"]) is not None]
        last = self.lines[-1]
        return TracedLink(
            file=self.file,
            link=self.link,
            peer=self.peer,
            lines=self.seen,
            seconds=last.time - self.lines[0].time,
            delivered=last.values["delivered"],
            lost=last.values["lost"],
            path_loss=last.values["path_loss"],
            rtt_min=min([*least, *rtts], default=None),
            rtt_median=median(rtts) if rtts else None,
            rtt_max=max(rtts, default=None),
            waits=_shares(_waiting(self.lines)),
        )


def read_traces(path: Path) -> list[LinkTrace]:
    """Read a trace. Return its links, those with the most delivered bytes first.

    Raises RecordError if it is invalid.
    """
    links: dict[tuple[str, str], LinkTrace] = {}
    for number, text in _texts(path):
        parsed = _line(text)
        if parsed is None:
            raise RecordError(f"line {number} of {path} is no line of a trace", UNKNOWN)
        *name, line = parsed
        key = (name[0], name[1])
        if key not in links and len(links) == MOST_LINKS:
            raise RecordError(f"{path} has more than {MOST_LINKS} links", "Make a trace of fewer clients")
        links.setdefault(key, LinkTrace(str(path), *key)).add(line)
    if not links:
        raise RecordError(f"{path} has no lines", UNKNOWN)
    for link in links.values():
        link.lines.sort(key=lambda line: line.time)
    return sorted(links.values(), key=lambda link: -(link.lines[-1].values["delivered"] or 0))


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the whole lines with their numbers. A last line without its end was still being written."""
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for number, text in enumerate(lines, 1):
                if text.endswith("\n"):
                    yield number, text
    except OSError as error:
        raise RecordError(f"cannot read the trace {path}: {error.strerror}", "Give a file that exists") from error


def _line(text: str) -> tuple[str, str, Line] | None:
    try:
        table = wire.decode(dict[str, object], text)
    except ValueError:
        return None
    if not isinstance(table.get("peer"), str):
        return None
    time, waits = _number(table.get("time")), table.get("waits")
    if time is None or not (waits is None or (isinstance(waits, str) and waits in WAITS)):
        return None
    values = {name: _number(table.get(name)) for name in NUMBERS}
    return plain(table.get("link", "")), plain(table["peer"]), Line(time, waits, values)


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18
    return float(value) if is_number and math.isfinite(value) else None  # type: ignore[arg-type]


def stretches(lines: Sequence[Line]) -> list[list[Line]]:
    """Return the lines in stretches, split at the pauses in which nothing was sent."""
    stretches_so_far: list[list[Line]] = []
    for line in lines:
        last = stretches_so_far[-1][-1] if stretches_so_far else None
        gap = 0.0 if last is None else line.time - last.time
        if last is None or gap > (IDLE_PAUSE if last.waits == "idle" else PAUSE):
            stretches_so_far.append([])
        stretches_so_far[-1].append(line)
    return stretches_so_far


def _waiting(lines: Sequence[Line]) -> dict[str, float]:
    """Return the seconds that the sender waited, by reason. Each line counts until the next one."""
    waited: dict[str, float] = defaultdict(float)
    for stretch in stretches(lines):
        for line, after in pairwise(stretch):
            if line.waits is not None:
                waited[line.waits] += after.time - line.time
    return waited


def _shares(waited: Mapping[str, float]) -> dict[str, float]:
    of = sum(waited.values())
    return {name: waited[name] / of for name in WAITS if waited.get(name)} if of else {}


@dataclass(frozen=True)
class Point:
    """Several consecutive lines as one point of a plot."""

    start: float
    end: float
    values: Mapping[str, float | None]
    waits: Mapping[str, float]


def points(lines: Sequence[Line], most: int = MOST_POINTS) -> list[Point | None]:
    """Return at most about ``most`` points, and None for each pause."""
    size = max(1, math.ceil(len(lines) / most))
    points_so_far: list[Point | None] = []
    for stretch in stretches(lines):
        points_so_far += [None] if points_so_far else []
        for at in range(0, len(stretch), size):
            # Includes the first line of the next point, because a line is valid until the next one.
            points_so_far.append(_point(stretch[at : at + size + 1]))
    return points_so_far


def _point(lines: Sequence[Line]) -> Point:
    first, last = lines[0], lines[-1]
    values = dict(last.values)
    for name in ("rtt_latest", "in_flight"):
        values[name] = max(
            (value for line in lines[1:] or lines if (value := line.values[name]) is not None), default=None
        )
    took = last.time - first.time
    delivered, lost = (_grown(first, last, name) for name in ("delivered", "lost"))
    values["arrived_rate"] = delivered / took if delivered is not None and took > 0 else None
    values["lost_share"] = (
        lost / (delivered + lost) if delivered is not None and lost is not None and delivered + lost > 0 else None
    )
    allowed = (values["rtt_min"], values["jitter_allowance"])
    values["rtt_allowed"] = None if None in allowed else sum(value or 0 for value in allowed)
    return Point(first.time, last.time, values, _shares(_waiting(lines)))


def _grown(first: Line, last: Line, name: str) -> float | None:
    before, after = first.values[name], last.values[name]
    # Never below 0: a segment that counted as lost may arrive after all.
    return None if before is None or after is None else max(0.0, after - before)


# The rows of a plot: title, factor, and for each line in it the key, the name and the dash.
ROWS: Final = (
    ("RTT (ms)", 1e3, (
        ("rtt_latest", "longest sample", "solid"), ("rtt", "smoothed", "solid"), ("rtt_min", "minimum", "dot"),
        ("rtt_allowed", "minimum and jitter", "dash"),
    )),
    ("rate (Mbit/s)", 8e-6, (
        ("pacing_rate", "pacing", "dot"), ("delivery_rate", "believed", "dash"), ("arrived_rate", "arrived", "solid"),
    )),
    ("bytes (MiB)", 2**-20, (("window", "window", "dash"), ("in_flight", "in flight", "solid"))),
    ("loss (%)", 100.0, (("lost_share", "lost", "solid"), ("path_loss", "the path's, believed", "dash"))),
)  # fmt: skip
WAITING: Final = "waits (% of time)"


def chart(trace: LinkTrace, since: float) -> Chart:
    """Draw a link over the time since ``since``, the first line of its file: plots in rows, with one time axis."""
    listed = points(trace.lines)
    real_points = [point for point in listed if point is not None]
    drawn: list[Trace] = []
    rows = [
        row for row in ROWS if any(point.values.get(key) is not None for key, *_ in row[2] for point in real_points)
    ]
    for position, (title, factor, shown) in enumerate(rows, 1):
        drawn += [{**line, **_row_of(position, title)} for line in _lines(listed, factor, shown, since)]
    has_waits = any(point.waits for point in real_points)
    if has_waits:
        drawn += [{**bars, **_row_of(len(rows) + 1, WAITING)} for bars in _waits(real_points, since)]
    titles = [row[0] for row in rows] + [WAITING] * has_waits
    notes = [f"{trace.peer}: each {trace.stride}. line is drawn"] if trace.stride > 1 else []
    return Chart("trace", drawn, _layout(titles), notes, 60 + 170 * len(titles))


def _axis(position: int) -> str:
    return "y" if position == 1 else f"y{position}"


def _row_of(position: int, title: str) -> Trace:
    return {"yaxis": _axis(position), "legendgroup": title, "legendgrouptitle": {"text": title}}


def _lines(
    listed: Sequence[Point | None], factor: float, shown: Sequence[tuple[str, str, str]], since: float
) -> list[Trace]:
    drawn: list[Trace] = []
    for index, (key, name, dash) in enumerate(shown):
        values = [None if point is None else point.values.get(key) for point in listed]
        if all(value is None for value in values):
            continue
        drawn.append(
            {
                "type": "scatter", "mode": "lines", "name": name,
                "x": [None if point is None else round(point.end - since, 4) for point in listed],
                "y": [None if value is None else round(value * factor, 4) for value in values],
                "line": {"color": colour(index), "dash": dash, "width": 1.5},
                "hovertemplate": "%{y:.4g} at %{x:.4g} s<extra>%{fullData.name}</extra>",
            }
        )  # fmt: skip
    return drawn


def _waits(real_points: Sequence[Point], since: float) -> list[Trace]:
    drawn = []
    for index, (name, meaning) in enumerate(WAITS.items()):
        if any(name in point.waits for point in real_points):
            drawn.append(
                {
                    "type": "bar", "name": meaning,
                    "x": [round((point.start + point.end) / 2 - since, 4) for point in real_points],
                    "y": [round(100 * point.waits.get(name, 0.0), 2) for point in real_points],
                    "width": [max(point.end - point.start, 1e-4) for point in real_points],
                    "marker": {"color": colour(index), "line": {"width": 0}},
                    "hovertemplate": "%{y:.3g} % at %{x:.4g} s<extra>%{fullData.name}</extra>",
                }
            )  # fmt: skip
    return drawn


def _layout(titles: Sequence[str]) -> Trace:
    layout: Trace = {"barmode": "stack", "bargap": 0, "hovermode": "x"}
    share = 1 / len(titles)
    for position, title in enumerate(titles, 1):
        top = 1 - (position - 1) * share
        layout[f"yaxis{'' if position == 1 else position}"] = {
            "title": {"text": title}, "rangemode": "tozero", "domain": [max(0.0, top - 0.86 * share), top],
            **({"range": [0, 100]} if title == WAITING else {}),
        }  # fmt: skip
    layout["xaxis"] = {"title": {"text": "time since the trace began (s)"}, "anchor": _axis(len(titles))}
    return layout


def started(traces: Sequence[LinkTrace]) -> dict[str, float]:
    """Return for each file the time of its first line."""
    by_file: dict[str, list[float]] = defaultdict(list)
    for trace in traces:
        by_file[trace.file].append(trace.lines[0].time)
    return {file: min(times) for file, times in by_file.items()}


def summary(links: Sequence[TracedLink]) -> str:
    """Return a table of the numbers of links."""
    head = ["to", "delivered", "lost", "RTT: least, median, longest", "waited for"]
    return table(head, [_row(link) for link in links], words=["waited for"])


def _row(link: TracedLink) -> list[str]:
    delivered, lost = link.delivered, link.lost
    share = (
        f" ({100 * lost / (delivered + lost):.2f} %)"
        if delivered is not None and lost is not None and delivered + lost
        else ""
    )
    trips = [link.rtt_min, link.rtt_median, link.rtt_max]
    waits = [f"{name} {100 * part:.0f} %" for name, part in link.waits.items()]
    return [
        f"{link.peer}, link {link.link}",
        "not known" if delivered is None else format_bytes(delivered),
        "not known" if lost is None else f"{format_bytes(lost)}{share}",
        ", ".join("not known" if trip is None else format_seconds(trip) for trip in trips),
        ", ".join(waits) or "nobody says",
    ]
