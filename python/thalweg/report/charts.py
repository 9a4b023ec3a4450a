"""The page's plots, as Plotly takes them: traces and a layout in plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any, Final

from thalweg.report.series import Group, RoundTimes, groups, round_times, thinned
from thalweg.report.text import escaped

Numbers = Mapping[str, Any]
Trace = dict[str, Any]

# Told apart by colour-blind readers as far as ten can be, on light and dark paper alike; the first are Okabe and Ito's.
COLOURS: Final = (
    "#0a84c6", "#e0782f", "#009e73", "#cc79a7", "#b8860b", "#7b61d1", "#d02060", "#56b4e9", "#8c564b", "#6b8e23",
)  # fmt: skip
SYMBOLS: Final = ("circle", "square", "diamond", "cross", "x", "triangle-up", "triangle-down", "star")
GREY: Final = "#8a94a0"
# Characters that have room below the page's plots, side by side.
SIDE_BY_SIDE: Final = 110


@dataclass(frozen=True)
class Chart:
    """A plot: its name on the page, what it shows, traces and layout, or why there is none."""

    name: str
    traces: list[Trace] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    height: int = 420
    # The axis that can be made logarithmic.
    scaled: str = "yaxis"

    def content(self) -> dict[str, Any]:
        """Return what the page's script draws."""
        return {"name": self.name, "traces": self.traces, "layout": {**self.layout, "height": self.height}}


def colour(index: int) -> str:
    """Return the colour of the run or link with this place."""
    return COLOURS[index % len(COLOURS)]


def axes(x: str, y: str, **more: Any) -> dict[str, Any]:
    """Return a layout with two titles."""
    return {
        "xaxis": {"title": {"text": x}, **more.pop("xaxis", {})},
        "yaxis": {"title": {"text": y}, "rangemode": "tozero", **more.pop("yaxis", {})},
        **more,
    }


def lines(
    name: str, runs: Sequence[Numbers], columns: tuple[str, str], bound: tuple[str, str] | None, factor: float = 1
) -> Chart:
    """Return a line for each run over its rounds, of ``columns`` x and y; ``bound`` are those of the dashed line."""
    traces: list[Trace] = []
    notes = []
    for index, run in enumerate(runs):
        known = [row for row in run["each_round"] if all(row[column] is not None for column in columns)]
        each = thinned(known)
        if not each:
            continue
        if len(each) < len(known):
            notes.append(f"{run['label']}: {len(each)} of {len(known)} rounds are drawn")
        traces.append(_line(run, index, each, columns, factor))
        limited = [row for row in each if bound and all(row[column] is not None for column in bound)]
        if bound and limited:
            traces.append(_bound_line(run, index, limited, bound, factor))
    return Chart(name, traces, {}, notes)


def by_round(runs: Sequence[Numbers], y: str) -> dict[str, Any]:
    """Return the axes of a plot against rounds, which have no halves."""
    few = all(len(run["each_round"]) <= 20 for run in runs)
    return axes("round", y, xaxis={"dtick": 1} if few else {})


def _line(run: Numbers, index: int, each: Sequence[Numbers], columns: tuple[str, str], factor: float) -> Trace:
    x, y = columns
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escaped(run["label"]),
        "legendgroup": str(index),
        "x": [row[x] for row in each],
        "y": [factor * row[y] for row in each],
        "customdata": [row["round"] for row in each],
        "line": {"color": colour(index)},
        "marker": {"color": colour(index), "symbol": SYMBOLS[index % len(SYMBOLS)], "size": 6},
        "hovertemplate": "%{y:.4g} at %{x:.4g}, round %{customdata}<extra>%{fullData.name}</extra>",
    }


def _bound_line(run: Numbers, index: int, each: Sequence[Numbers], columns: tuple[str, str], factor: float) -> Trace:
    x, y = columns
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"{escaped(run['label'])}: lower bound",
        "legendgroup": str(index),
        "x": [row[x] for row in each],
        "y": [factor * row[y] for row in each],
        "line": {"color": colour(index), "dash": "dash", "width": 1.5},
        "hovertemplate": "%{y:.4g} at %{x:.4g}<extra>%{fullData.name}</extra>",
    }


def accuracy_rounds(runs: Sequence[Numbers]) -> Chart:
    """Return the global model's accuracy against rounds."""
    chart = lines("accuracy-rounds", runs, ("round", "accuracy"), None, 100)
    chart.layout.update(by_round(runs, "accuracy (%)"))
    return chart


def accuracy_time(runs: Sequence[Numbers]) -> Chart:
    """Return it against the sum of rounds' times, and where it would be with communication at its lower bound."""
    bound = ("bound_elapsed_seconds", "accuracy")
    chart = lines("accuracy-time", runs, ("elapsed_seconds", "accuracy"), bound, 100)
    chart.layout.update(axes("time of all rounds so far (s)", "accuracy (%)", xaxis={"rangemode": "tozero"}))
    return chart


def communication_rounds(runs: Sequence[Numbers]) -> Chart:
    """Return the communication time of each round beside its lower bound."""
    bound = ("round", "bound_seconds")
    chart = lines("communication-rounds", runs, ("round", "communication_seconds"), bound)
    chart.layout.update(by_round(runs, "communication (s)"))
    return chart


def communication_time(runs: Sequence[Numbers]) -> Chart:
    """Return bars of the median communication time by transport and network, with the spread over rounds."""
    found = groups(runs)
    traces: list[Trace] = []
    marks: list[Trace] = []
    for index, transport in enumerate(dict.fromkeys(group.transport for group in found)):
        members = [group for group in found if group.transport == transport]
        traces.append(_bars(members, transport, index))
        marks += _bound_marks(members, index, named=not marks)
    # Side by side only where a network has several transports.
    places = len({group.place for group in found})
    mode, gap = ("group" if places < len(found) else "overlay"), (0.35 if len(found) > 3 else 0.65)
    layout = axes("", "communication of a round (s)", barmode=mode, scattermode=mode, bargap=gap, scattergap=gap)
    layout["xaxis"] = {"type": "category", "automargin": True}
    if mode == "overlay":
        for trace in (*traces, *marks):
            del trace["offsetgroup"]
    return Chart("communication-time", traces + marks, layout)


def category(place: str) -> str:
    """Return a network's name as it stands below a plot, in lines that are short enough to stand side by side."""
    return escaped(place).replace(", ", ",<br>")


def _bars(members: Sequence[Group], transport: str, index: int) -> Trace:
    middles = [group.median for group in members]
    return {
        "type": "bar",
        "name": escaped(transport),
        "offsetgroup": str(index),
        "x": [category(group.place) for group in members],
        "y": middles,
        "marker": {"color": colour(index)},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [max(g.seconds) - middle for g, middle in zip(members, middles, strict=True)],
            "arrayminus": [middle - min(g.seconds) for g, middle in zip(members, middles, strict=True)],
            "thickness": 1.5,
        },
        "customdata": [[min(g.seconds), *_quartiles(g.seconds), max(g.seconds), len(g.seconds)] for g in members],
        "hovertemplate": "median %{y:.4g} s<br>least %{customdata[0]:.4g}, quartiles %{customdata[1]:.4g} and "
        "%{customdata[2]:.4g}, most %{customdata[3]:.4g}<br>%{customdata[4]} rounds<extra>%{fullData.name}</extra>",
    }


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    lower, _, upper = quantiles(values, n=4, method="inclusive")
    return lower, upper


def _bound_marks(members: Sequence[Group], index: int, *, named: bool) -> list[Trace]:
    bounded = [group for group in members if group.bound is not None]
    if not bounded:
        return []
    places = [category(group.place) for group in bounded]
    marks = _marks(places, [group.bound for group in bounded], 34, "lower bound", named=named)
    return [{**marks, "offsetgroup": str(index)}]


def _marks(x: Sequence[str], y: Sequence[float | None], width: int, name: str, *, named: bool = True) -> Trace:
    """Return short horizontal lines; the page gives them the colour of its text."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "legendgroup": name,
        "showlegend": named,
        "x": list(x),
        "y": list(y),
        "marker": {"symbol": "line-ew-open", "size": width, "line": {"width": 3}},
        "hovertemplate": "%{y:.4g} s<extra>%{fullData.name}</extra>",
    }


def round_time(runs: Sequence[Numbers]) -> Chart:
    """Return a box of rounds' times for each run, or cell, with the median of training + lower bound.

    Names that are too long to stand side by side have the boxes lie.
    """
    found = round_times(runs)
    lie = sum(len(one.name) for one in found) > SIDE_BY_SIDE
    boxes = [_box(one, index, lie=lie) for index, one in enumerate(found)]
    floors = [(escaped(one.name), one.floor) for one in found if one.floor is not None]
    layout = axes("", "time of a round (s)", legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0})
    layout["xaxis"] = {"type": "category", "automargin": True}
    name = "training and the lower bound of communication"
    width = 60 if not lie else 20
    marks = [_marks([label for label, _ in floors], [floor for _, floor in floors], width, name)] if floors else []
    if not lie:
        return Chart("round-time", boxes + marks, layout)
    layout["xaxis"], layout["yaxis"] = layout["yaxis"], {**layout["xaxis"], "autorange": "reversed"}
    return Chart("round-time", boxes + [_lying(one) for one in marks], layout, [], 140 + 30 * len(found), "xaxis")


def _lying(marks: Trace) -> Trace:
    """Return marks across bars that lie."""
    marker = {**marks["marker"], "symbol": "line-ns-open"}
    hover = marks["hovertemplate"].replace("%{y", "%{x")
    return {**marks, "x": marks["y"], "y": marks["x"], "marker": marker, "hovertemplate": hover}


def _box(one: RoundTimes, index: int, *, lie: bool) -> Trace:
    value = "x" if lie else "y"
    return {
        "type": "box",
        "name": escaped(one.name),
        "orientation": "h" if lie else "v",
        value: thinned(sorted(one.seconds)),
        "boxpoints": "all" if len(one.seconds) <= 50 else "outliers",
        "jitter": 0.3,
        "pointpos": 0,
        "marker": {"color": colour(index), "size": 4},
        "line": {"width": 1.5},
        "showlegend": False,
        "hoverinfo": value,
    }
