"""The plots of one run: the timeline of its transfers, and the throughput and queues of its links."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from thalweg.report import workers
from thalweg.report.charts import GREY, SPLIT_COLOURS, Chart, Trace, axes
from thalweg.report.colours import colour
from thalweg.report.series import (
    KINDS,
    MOST_BARS,
    MOST_BINS,
    MOST_SERIES,
    Bar,
    LinkSeries,
    Timeline,
    distinct_rates,
    links_over_time,
    timeline,
)
from thalweg.report.source import Run
from thalweg.report.split import COMMUNICATION
from thalweg.report.text import escaped

COLOUR_OF: Final = {"down": "#7fb0dd", "training": GREY, "up": SPLIT_COLOURS[COMMUNICATION], "broken off": "#d02060"}
# Limits for all runs of a page together; the more runs, the less for each.
BARS_OF_ALL: Final = 20_000
BINS_OF_ALL: Final = 100_000
MOST_LINES: Final = 60
DASHES: Final = {"ba": "dot"}


def timeline_chart(run: Run, runs: int) -> Chart:
    """Return the timeline of a run's clients: when each sent, received and trained. The page has ``runs`` runs."""
    return _lanes("timeline", timeline(run, _bars_of_each(runs)), {kind: COLOUR_OF[kind] for kind in KINDS})


def workers_chart(run: Run, runs: int) -> Chart:
    """Return the timeline of a run's workers. The page has ``runs`` runs."""
    colours = {kind: workers.COLOUR_OF[kind] for kind in workers.KINDS}
    return _lanes("workers", workers.timeline(run, _bars_of_each(runs)), colours)


def _bars_of_each(runs: int) -> int:
    return max(300, min(MOST_BARS, BARS_OF_ALL // runs))


def _lanes(name: str, shown: Timeline, colours: Mapping[str, str]) -> Chart:
    kinds = [kind for kind in colours if any(bar.kind == kind for bar in shown.bars)]
    traces = [_stretches(shown, kind, colours[kind]) for kind in kinds]
    names = [escaped(lane) for lane in shown.lanes]
    layout = axes("time on the server's clock of the run (s)", "", barmode="overlay", bargap=0.25)
    layout["yaxis"] = {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": names,
        "autorange": "reversed",
        "automargin": True,
        "ticklabelstandoff": 6,
        "ticklabelstep": 1 if len(names) <= 32 else 2,
    }
    layout["shapes"] = [_round_line(start) for start in list(shown.starts.values())[:MOST_LINES]]
    height = 150 + max(3, len(names)) * (24 if len(names) <= 32 else 14)
    return Chart(name, traces, layout, [shown.note] if shown.note else [], height)


def _round_line(start: float) -> Trace:
    line = {"color": GREY, "width": 1, "dash": "dot"}
    return {"type": "line", "x0": start, "x1": start, "y0": 0, "y1": 1, "yref": "paper", "layer": "below", "line": line}


def _stretches(shown: Timeline, kind: str, shade: str) -> Trace:
    bars = [bar for bar in shown.bars if bar.kind == kind]
    return {
        "type": "bar",
        "orientation": "h",
        "name": kind,
        "y": [escaped(bar.lane) for bar in bars],
        "base": [bar.start for bar in bars],
        "x": [bar.end - bar.start for bar in bars],
        # The line keeps a bar visible that is narrower than a pixel.
        "marker": {"color": shade, "line": {"width": 1, "color": shade}},
        "opacity": 0.45 if kind == "training" else 1,
        "hovertext": [_bar_words(bar) for bar in bars],
        "hovertemplate": "%{hovertext}<extra>%{fullData.name}</extra>",
    }


def _bar_words(bar: Bar) -> str:
    words = [f"{escaped(bar.lane)}, round {bar.round}", f"{bar.start:.6g} s to {bar.end:.6g} s", *bar.words]
    if bar.row is not None:
        source, target = bar.row.source, bar.row.target
        words += [] if source is None else [f"{escaped(source)} to {escaped(target)}"]
        for sending, ends in (
            ("sent", (bar.row.send_start, bar.row.send_end)),
            ("received", (bar.row.receive_start, bar.row.receive_end)),
        ):
            words.append(f"{sending} {' to '.join('not known' if end is None else f'{end:.6g}' for end in ends)} s")
        words.append(f"{bar.row.bytes or 0} bytes")
        again = bar.row.retransmissions
        words += [] if again is None else [f"{again} segments sent again, counted since its sender's last transfer"]
    return "<br>".join(words)


def links_chart(run: Run, runs: int) -> Chart:
    """Return a plot of the throughput of each direction of each link, with its queue below."""
    directions = max(1, min(MOST_SERIES, len(run.samples)))
    bins = max(50, min(MOST_BINS, BINS_OF_ALL // (directions * runs)))
    shown, note = links_over_time(run, bins)
    links = list(dict.fromkeys(one.link for one in shown))
    traces = [trace for one in shown for trace in _link(one, links.index(one.link))]
    traces += [_rate(one) for one in distinct_rates(shown)]
    layout = axes(
        "time on the server's clock of the run (s)",
        "carried (Mbit/s)",
        xaxis={"anchor": "y2"},
        yaxis={"domain": [0.54, 1]},
        yaxis2={"title": {"text": "queue (KiB)"}, "rangemode": "tozero", "domain": [0, 0.46], "anchor": "x"},
    )
    return Chart("links", traces, layout, [note] if note else [], 560)


def _link(one: LinkSeries, index: int) -> list[Trace]:
    group = f"{index} {one.direction}"
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": escaped(one.name),
            "legendgroup": group,
            "showlegend": axis == "y",
            **_times(one),
            "y": values,
            "yaxis": axis,
            "line": {"color": colour(index), "shape": "hv", "width": 1.5, "dash": DASHES.get(one.direction, "solid")},
            "hovertemplate": f"%{{y:.4g}} {unit} at %{{x:.4g}} s<extra>%{{fullData.name}}</extra>",
        }
        for axis, values, unit in (
            ("y", listed(one.throughput / 1e6), "Mbit/s"),
            ("y2", listed(one.queue_bytes / 1024), "KiB"),
        )
    ]


def _times(one: LinkSeries) -> dict[str, float]:
    return {"x0": float(one.edges[0]), "dx": float(one.edges[1] - one.edges[0])}


def _rate(one: LinkSeries) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "rate of the link",
        **_times(one),
        "y": listed(one.rate / 1e6),
        "line": {"color": GREY, "dash": "dash", "shape": "hv", "width": 1.5},
        "hovertemplate": "%{y:.4g} Mbit/s<extra>rate of the link</extra>",
    }


def listed(values: Any) -> list[float | None]:
    """Return an array as JSON values with six digits, NaN as null."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist()]
