"""The page's plots, in the form that Plotly's basic bundle reads: traces and a layout in plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from thalweg.report.colours import DASHES, of_transports
from thalweg.report.series import Cell, Group, Number, Point, by_cell, groups, round_times, thinned
from thalweg.report.split import COMMUNICATION, PARTS, TRAINING, WAITING
from thalweg.report.text import escaped
from thalweg.report.values import unit, unit_with_article

if TYPE_CHECKING:
    from thalweg.report.values import Compared, RoundNumbers

# A trace or a layout of Plotly, as JSON values. This package writes them and never reads them.
Trace: TypeAlias = dict[str, Any]

SYMBOLS: Final = ("circle", "square", "diamond", "cross", "x", "triangle-up", "triangle-down", "star")
GREY: Final = "#8a94a0"
SPLIT_COLOURS: Final = {TRAINING: GREY, COMMUNICATION: "#3f7fbf", WAITING: "#d9b44a"}
BOUND: Final = "lower bound"
BAR: Final = 30
# Maximum number of characters of a name in a legend beside a plot; maximum number of points of a line with symbols.
BESIDE: Final = 24
MOST_MARKERS: Final = 100


@dataclass(frozen=True)
class Chart:
    """A plot: its name on the page, its traces and layout, and notes, for example why it has no traces."""

    name: str
    traces: list[Trace] = field(default_factory=list)
    layout: Trace = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    height: int = 420
    # The axis that readers can make logarithmic.
    scaled: str = "yaxis"

    def content(self) -> dict[str, object]:
        """Return the plot as the page's script reads it."""
        return {"name": self.name, "traces": self.traces, "layout": {**self.layout, "height": self.height}}


def axes(x: str, y: str, **more: Any) -> Trace:
    """Return a layout with titles for both axes."""
    return {
        "xaxis": {"title": {"text": x}, **more.pop("xaxis", {})},
        "yaxis": {"title": {"text": y}, "rangemode": "tozero", **more.pop("yaxis", {})},
        **more,
    }


@dataclass(frozen=True)
class Style:
    """The look of a cell's lines: its transport's colour, its network's dash and symbol.

    ``group`` is their legend group.
    """

    group: str
    colour: str
    dash: str
    symbol: str


def styles(cells: Sequence[Cell]) -> list[Style]:
    """Return the style of each cell."""
    colours = of_transports(cell.transport for cell in cells)
    conditions = list(dict.fromkeys(cell.condition for cell in cells))
    listed = []
    for number, cell in enumerate(cells):
        at = conditions.index(cell.condition)
        listed.append(Style(str(number), colours[cell.transport], DASHES[at % len(DASHES)], SYMBOLS[at % len(SYMBOLS)]))
    return listed


def lines(
    name: str,
    runs: Sequence[Compared],
    columns: tuple[Number, Number],
    bound: tuple[Number, Number] | None,
    factor: float = 1,
) -> Chart:
    """Return one line for each cell over its rounds, of ``columns`` x and y, with the spread over its runs.

    ``bound`` has the columns of a dotted line; equal bounds of several cells are drawn once.
    """
    traces: list[Trace] = []
    bounds: dict[str, Trace] = {}
    notes = []
    cells = by_cell(runs)
    for cell, style in zip(cells, styles(cells), strict=True):
        points = cell.over_rounds(*columns)
        each = thinned(points)
        if len(each) < len(points):
            notes.append(f"{cell.name}: {len(each)} of {len(points)} {unit(cell.runs)}s are drawn")
        if any(point.runs > 1 for point in each):
            traces += _band(each, style, factor)
        traces += [_line(cell, each, style, factor)] if each else []
        limit = _bound_line(cell, bound, style, factor) if bound else None
        if limit is not None:
            bounds.setdefault(repr((limit["x"], limit["y"])), limit)
    drawn = [{**one, "showlegend": not at} for at, one in enumerate(bounds.values())]
    return Chart(name, traces + drawn, {"showlegend": len(traces + drawn) > 1, **_legend(cells)}, notes)


def _legend(cells: Sequence[Cell]) -> Trace:
    """Return a legend above the plot if long names beside it would squeeze it; else nothing, the page's default."""
    if max((len(cell.name) for cell in cells), default=0) <= BESIDE:
        return {}
    return {"legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}}


def by_round(runs: Sequence[Compared], y: str) -> Trace:
    """Return the axes of a plot against rounds, with ticks at whole rounds."""
    few = all(len(run.each_round) <= 20 for run in runs)
    return axes(unit(runs), y, xaxis={"dtick": 1} if few else {})


def _line(cell: Cell, each: Sequence[Point], style: Style, factor: float) -> Trace:
    several = ", median of %{customdata[1]} runs" if len(cell.runs) > 1 else ""
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(each) <= MOST_MARKERS else "lines",
        "name": escaped(cell.name),
        "legendgroup": style.group,
        "x": [point.x for point in each],
        "y": [factor * point.y for point in each],
        "customdata": [[point.round, point.runs] for point in each],
        "line": {"color": style.colour, "dash": style.dash},
        "marker": {"color": style.colour, "symbol": style.symbol, "size": 6},
        "hovertemplate": "%{y:.4g} at %{x:.4g}, "
        + unit(cell.runs)
        + " %{customdata[0]}"
        + several
        + "<extra>%{fullData.name}</extra>",
    }


def _band(each: Sequence[Point], style: Style, factor: float) -> list[Trace]:
    """Return the minimum and the maximum over runs, with the area between them filled."""
    channels = ", ".join(str(int(style.colour[at : at + 2], 16)) for at in (1, 3, 5))
    return [
        {
            "type": "scatter", "mode": "lines", "legendgroup": style.group, "showlegend": False, "hoverinfo": "skip",
            "x": [point.x for point in each], "y": [factor * end for end in ends], "line": {"width": 0},
            "fillcolor": f"rgba({channels}, 0.18)", **more,
        }
        for ends, more in (
            ([point.least for point in each], {}),
            ([point.most for point in each], {"fill": "tonexty"}),
        )
    ]  # fmt: skip


def _bound_line(cell: Cell, columns: tuple[Number, Number], style: Style, factor: float) -> Trace | None:
    """Return a cell's dotted line for the bound, or None if it has no bound."""
    each = thinned(cell.over_rounds(*columns))
    if not each:
        return None
    return {
        "type": "scatter",
        "mode": "lines",
        "name": BOUND,
        "legendgroup": BOUND,
        "x": [point.x for point in each],
        "y": [factor * point.y for point in each],
        "line": {"color": style.colour, "dash": "dot", "width": 1.5},
        "hovertemplate": f"%{{y:.4g}} at %{{x:.4g}}<extra>{BOUND}</extra>",
    }


def _number(row: RoundNumbers) -> float:
    return row.round


def _accuracy(row: RoundNumbers) -> float | None:
    return row.accuracy


def accuracy_rounds(runs: Sequence[Compared]) -> Chart:
    """Return a plot of the global model's accuracy against rounds."""
    chart = lines("accuracy-rounds", runs, (_number, _accuracy), None, 100)
    chart.layout.update(by_round(runs, "accuracy (%)"))
    return chart


def client_accuracy_rounds(runs: Sequence[Compared]) -> Chart:
    """Return a plot of the mean accuracy of the models that clients trained, against rounds."""
    chart = lines("client-accuracy-rounds", runs, (_number, lambda row: row.client_accuracy), None, 100)
    chart.layout.update(by_round(runs, "clients' own accuracy (%)"))
    return chart


def accuracy_time(runs: Sequence[Compared]) -> Chart:
    """Return a plot of the accuracy against the sum of the rounds' times, measured and with the lower bound instead."""
    shown: tuple[Number, Number] = (lambda row: row.elapsed_seconds, _accuracy)
    chart = lines("accuracy-time", runs, shown, (lambda row: row.bound_elapsed_seconds, _accuracy), 100)
    chart.layout.update(axes(f"time of all {unit(runs)}s so far (s)", "accuracy (%)", xaxis={"rangemode": "tozero"}))
    return chart


def communication_rounds(runs: Sequence[Compared]) -> Chart:
    """Return a plot of the communication time of each round, with its lower bound."""
    shown: tuple[Number, Number] = (_number, lambda row: row.communication_seconds)
    chart = lines("communication-rounds", runs, shown, (_number, lambda row: row.bound_seconds))
    chart.layout.update(by_round(runs, "communication (s)"))
    return chart


def communication_time(runs: Sequence[Compared]) -> Chart:
    """Return bars of the median communication time by transport and network, with the spread over rounds."""
    drawn = groups(runs)
    colours = of_transports(group.transport for group in drawn)
    traces: list[Trace] = []
    marks: list[Trace] = []
    for index, transport in enumerate(dict.fromkeys(group.transport for group in drawn)):
        members = [group for group in drawn if group.transport == transport]
        traces.append(_bars(members, transport, index, colours[transport], unit(runs)))
        marks += _bound_marks(members, index, named=not marks)
    # Bars stand side by side only if a network has several transports.
    conditions = len({group.condition for group in drawn})
    mode, gap = ("group" if conditions < len(drawn) else "overlay"), (0.35 if len(drawn) > 3 else 0.65)
    layout = axes(
        "",
        f"communication of {unit_with_article(runs)} (s)",
        barmode=mode,
        scattermode=mode,
        bargap=gap,
        scattergap=gap,
    )
    layout["xaxis"] = {"type": "category", "automargin": True}
    if mode == "overlay":
        for trace in (*traces, *marks):
            del trace["offsetgroup"]
    return Chart("communication-time", traces + marks, layout)


def category(condition: str) -> str:
    """Return a network's name for the axis of a plot, broken into short lines so that names fit side by side."""
    return escaped(condition).replace(", ", ",<br>")


def _bars(members: Sequence[Group], transport: str, index: int, colour: str, word: str) -> Trace:
    middles = [group.median for group in members]
    return {
        "type": "bar",
        "name": escaped(transport),
        "offsetgroup": str(index),
        "x": [category(group.condition) for group in members],
        "y": middles,
        "marker": {"color": colour},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [max(g.seconds) - middle for g, middle in zip(members, middles, strict=True)],
            "arrayminus": [middle - min(g.seconds) for g, middle in zip(members, middles, strict=True)],
            "thickness": 1.5,
        },
        "customdata": [[min(g.seconds), *_quartiles(g.seconds), max(g.seconds), len(g.seconds)] for g in members],
        "hovertemplate": "median %{y:.4g} s<br>least %{customdata[0]:.4g}, quartiles %{customdata[1]:.4g} and "
        "%{customdata[2]:.4g}, most %{customdata[3]:.4g}<br>%{customdata[4]} "
        + word
        + "s<extra>%{fullData.name}</extra>",
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
    marks = _marks([category(group.condition) for group in bounded], [group.bound for group in bounded], 34, BOUND)
    return [{**marks, "offsetgroup": str(index), "showlegend": named}]


def _marks(x: Sequence[Any], y: Sequence[Any], width: int, name: str) -> Trace:
    """Return short horizontal lines. The page's script gives them the colour of its text."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "legendgroup": name,
        "x": list(x),
        "y": list(y),
        "marker": {"symbol": "line-ew-open", "size": width, "line": {"width": 3}},
        "hovertemplate": "%{y:.4g} s<extra>%{fullData.name}</extra>",
    }


def split_rounds(run: Compared) -> Chart:
    """Return a stacked bar for each round of one run: training, communication and waiting."""
    parts = thinned([(row.round, row.split) for row in run.each_round if row.split is not None])
    rounds = [number for number, _ in parts]
    traces: list[Trace] = [
        {"type": "bar", "name": part, "x": rounds, "y": [split[part] for _, split in parts],
         "marker": {"color": SPLIT_COLOURS[part]}, "hovertemplate": "%{y:.4g} s<extra>%{fullData.name}</extra>"}
        for part in _parts_of([split for _, split in parts])
    ]  # fmt: skip
    layout = axes(
        unit([run]),
        f"time of {unit_with_article([run])} (s)",
        barmode="stack",
        hovermode="x unified",
        legend={"traceorder": "normal"},
    )
    layout["xaxis"] |= {"dtick": 1} if len(rounds) <= 20 else {}
    return Chart("split", traces, layout, [], 320)


def _parts_of(splits: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the parts that took any time; a payload, for example, has no training."""
    return [part for part in PARTS if any(one[part] > 0 for one in splits)]


def round_time(runs: Sequence[Compared]) -> Chart:
    """Return a horizontal stacked bar for each cell: the parts of its rounds' time.

    A mark shows training + lower bound.
    """
    cells = round_times(runs)
    names = [escaped(one.name) for one in cells]
    measured = [one for one in cells if one.split is not None]
    traces: list[Trace] = [
        {"type": "bar", "orientation": "h", "name": part, "y": [escaped(one.name) for one in measured],
         "x": [one.split[part] for one in measured if one.split is not None], "marker": {"color": SPLIT_COLOURS[part]},
         "hovertemplate": "%{x:.4g} s<extra>%{fullData.name}</extra>"}
        for part in _parts_of([one.split for one in measured if one.split is not None])
    ]  # fmt: skip
    floors = [(one.floor, escaped(one.name)) for one in cells if one.floor is not None]
    if floors:
        marks = _marks([floor for floor, _ in floors], [name for _, name in floors], 22, f"training and {BOUND}")
        marks["marker"]["symbol"], marks["hovertemplate"] = "line-ns-open", "%{x:.4g} s<extra>%{fullData.name}</extra>"
        traces.append(marks)
    layout = axes(f"time of {unit_with_article(runs)} (s)", "", barmode="stack", xaxis={"rangemode": "tozero"})
    layout["legend"] = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"}
    layout["yaxis"] = {
        "type": "category", "automargin": True, "ticklabelstandoff": 6, "autorange": "reversed",
        "categoryorder": "array", "categoryarray": names,
    }  # fmt: skip
    return Chart("round-time", traces, layout, [], 150 + BAR * max(2, len(cells)), "xaxis")
