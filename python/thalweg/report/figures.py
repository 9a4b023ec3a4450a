"""Figures for a paper: PNG and SVG at a column's width. The same records give the same SVG, byte for byte."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

from thalweg.errors import RecordError
from thalweg.report import graphs, workers
from thalweg.report.charts import GREY
from thalweg.report.colours import colour, of_transports
from thalweg.report.details import COLOUR_OF
from thalweg.report.series import (
    KINDS,
    Number,
    Timeline,
    by_cell,
    distinct_rates,
    groups,
    links_over_time,
    round_times,
    thinned,
    timeline,
)
from thalweg.report.source import Run
from thalweg.report.text import plain
from thalweg.report.values import unit, unit_with_article

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from thalweg.report.values import GraphNumbers, RunNumbers

# Inches: a column of a two-column paper.
WIDTH: Final = 3.5
HEIGHT: Final = 2.3
DOTS: Final = 300
MARKERS: Final = "osD^vX*P"
LINES: Final = {"ba": ":"}
# Maximum number of characters of a name below an axis, and of a name in a legend.
TICK: Final = 28
LEGEND: Final = 56
# Limits for names below an axis: how many characters fit side by side; how many lines a name may have; how many names
# may be slanted; and the height in points that upright names may take.
ROOM: Final = 44
MOST_TICK_LINES: Final = 3
MOST_SLANTED: Final = 6
UPRIGHT: Final = 190
MOST_LABELS: Final = 8
# Maximum number of bins of time: with more of them a bin would be narrower than a line.
BINS: Final = 500
BOUND: Final = "lower bound"
FLOOR: Final = "training and the lower bound of communication"
SETTINGS: Final[dict[Any, Any]] = {
    "font.size": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.4,
    "grid.color": "#d8dde2",
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "svg.hashsalt": "thalweg",
    "svg.fonttype": "path",
    # Otherwise a client named $x$ would be drawn as a formula.
    "text.parse_math": False,
}


class NothingToDrawError(Exception):
    """The figure would be empty; the message says why."""


def draw(runs: Sequence[Run], numbers: Sequence[RunNumbers], folder: Path) -> tuple[list[Path], dict[str, str]]:
    """Write the figures to ``folder``; return the files, and for each other figure why there is none.

    Raises RecordError.
    """
    written: list[Path] = []
    left_out: dict[str, str] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, make in _figures(runs, numbers):
            paths, why = _save(folder, name, make)
            written += paths
            left_out |= {} if why is None else {name: why}
    except OSError as error:
        raise RecordError(
            f"cannot write figures to {folder}: {error.strerror}", "Give another folder with --figures"
        ) from error
    return written, left_out


def _figures(runs: Sequence[Run], numbers: Sequence[RunNumbers]) -> Iterator[tuple[str, Callable[[Figure], None]]]:
    yield "accuracy-rounds", lambda figure: _accuracy_rounds(figure, runs, numbers)
    yield "accuracy-time", lambda figure: _accuracy_time(figure, runs, numbers)
    yield "communication-time", lambda figure: _communication(figure, numbers)
    yield "round-time", lambda figure: _round_time(figure, numbers)
    for number, run in enumerate(runs, 1):
        suffix = f"-{number}-{_slug(run.label)}" if len(runs) > 1 else ""
        yield f"timeline{suffix}", lambda figure, run=run: _timeline(figure, run)  # type: ignore[misc]
        if workers.has_workers(run):
            yield f"workers{suffix}", lambda figure, run=run: _workers(figure, run)  # type: ignore[misc]
        if numbers[number - 1].graph is not None:
            yield f"graph{suffix}", lambda figure, of=numbers[number - 1].graph: _graph(figure, of)  # type: ignore[misc]
        yield f"links{suffix}", lambda figure, run=run: _links(figure, run)  # type: ignore[misc]


def _slug(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-.")[:60]


def _save(folder: Path, name: str, make: Callable[[Figure], None]) -> tuple[list[Path], str | None]:
    """Draw a figure and write it; return its files, or why it was not drawn."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(), _quiet():
        import matplotlib as mpl

        mpl.rcdefaults()
        mpl.rcParams.update(SETTINGS)
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        FigureCanvasAgg(figure)
        try:
            make(figure)
        except NothingToDrawError as why:
            return [], str(why)
        png, svg = folder / f"{name}.png", folder / f"{name}.svg"
        figure.savefig(png, dpi=DOTS, metadata={"Software": None})
        figure.savefig(svg, metadata={"Date": None, "Creator": None})
    return [png, svg], None


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings about characters that no installed font has; a box is drawn instead."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*[Gg]lyph.*")
        yield


def _name(text: object, longest: int = LEGEND) -> str:
    """Return a name cut to ``longest`` characters. Its end stays, because runs differ there."""
    line = plain(text)
    half = longest // 2
    return line if len(line) <= longest else f"{line[: half - 1]}…{line[-half:]}"


def _accuracy_rounds(figure: Figure, runs: Sequence[Run], numbers: Sequence[RunNumbers]) -> None:
    axes = _accuracy(figure, runs, numbers, lambda row: row.round, None)
    axes.set_xlabel(unit(numbers))
    _whole_rounds(axes)
    _legend(figure, axes)


def _accuracy_time(figure: Figure, runs: Sequence[Run], numbers: Sequence[RunNumbers]) -> None:
    axes = _accuracy(figure, runs, numbers, lambda row: row.elapsed_seconds, lambda row: row.bound_elapsed_seconds)
    axes.set_xlabel(f"time of all {unit(numbers)}s so far (s)")
    axes.set_xlim(left=0)
    _legend(figure, axes)


def _accuracy(
    figure: Figure, runs: Sequence[Run], numbers: Sequence[RunNumbers], x: Number, bound: Number | None
) -> Axes:
    """Return a plot of each cell's accuracy over ``x``, with a dashed line over ``bound``."""
    axes = figure.add_subplot()
    cells = by_cell(numbers)
    colours = of_transports(cell.transport for cell in cells)
    for index, cell in enumerate(cells):
        each = thinned(cell.over_rounds(x, lambda row: row.accuracy))
        if not each:
            continue
        shade = colours[cell.transport]
        accuracy = [100 * point.y for point in each]
        marker = MARKERS[index % len(MARKERS)] if len(each) <= 40 else None
        axes.plot([point.x for point in each], accuracy, marker=marker, label=_name(cell.name), color=shade)
        if bound is not None:
            bounded = thinned(cell.over_rounds(bound, lambda row: row.accuracy))
            least = [(point.x, 100 * point.y) for point in bounded]
            axes.plot(*zip(*least, strict=True), linestyle="--", linewidth=0.8, color=shade) if least else None
    if not axes.lines:
        raise NothingToDrawError("; ".join(dict.fromkeys(run.why_no_accuracy() for run in runs)))
    axes.set_ylabel("accuracy (%)")
    if any(line.get_linestyle() == "--" for line in axes.lines):
        axes.plot([], [], color=GREY, linestyle="--", linewidth=0.8, label=BOUND)
    return axes


def _whole_rounds(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _legend(figure: Figure, axes: Axes, *, columns: int | None = None) -> None:
    """Put a legend above the plot, with each name once, if there are names."""
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    names = sorted(handles, key=lambda name: name in (BOUND, FLOOR))
    if not names:
        return
    shown = names[:MOST_LABELS]
    lines = [handles[name] for name in shown]
    if len(shown) < len(names):
        from matplotlib.lines import Line2D

        shown, lines = [*shown, f"and {len(names) - len(shown)} more"], [*lines, Line2D([], [], linestyle="")]
    columns = columns or (2 if max(map(len, shown)) <= 24 else 1)
    figure.legend(lines, shown, loc="outside upper left", ncols=columns)


def _communication(figure: Figure, numbers: Sequence[RunNumbers]) -> None:
    drawn = groups(numbers)
    if not drawn:
        raise NothingToDrawError(f"no {unit(numbers)} was finished")
    axes = figure.add_subplot()
    conditions = list(dict.fromkeys(group.condition for group in drawn))
    transports = list(dict.fromkeys(group.transport for group in drawn))
    # Bars stand side by side only if a network has several transports.
    columns = len(transports) if len(conditions) < len(drawn) else 1
    width = 0.8 / columns if columns > 1 else 0.5
    colours = of_transports(transports)
    for index, transport in enumerate(transports):
        for group in (group for group in drawn if group.transport == transport):
            at = conditions.index(group.condition) + (index - (columns - 1) / 2) * width * (columns > 1)
            middle = group.median
            spread = [[middle - min(group.seconds)], [max(group.seconds) - middle]]
            axes.bar(at, middle, 0.85 * width, color=colours[transport], label=_name(transport))
            axes.errorbar(at, middle, yerr=spread, color="#333333", capsize=2, linewidth=0.8)
            if group.bound is not None:
                axes.hlines(group.bound, at - width / 2, at + width / 2, colors="black", label=BOUND)
    _ticks(figure, axes, range(len(conditions)), conditions)
    axes.set_ylabel(f"communication of {unit_with_article(numbers)} (s)")
    axes.grid(visible=False, axis="x")
    axes.set_ylim(bottom=0)
    _legend(figure, axes)


def _ticks(figure: Figure, axes: Axes, at: Sequence[int], names: Sequence[str]) -> None:
    """Put names below an axis so that they do not overlap: in lines, else slanted, else upright."""
    shown = [_name(name, TICK) for name in names]
    slot = ROOM // max(1, len(names))
    lines = [wrap(_name(name, MOST_TICK_LINES * slot), slot, break_long_words=False) or [name] for name in names]
    if all(len(line) <= slot for name in lines for line in name) and max(map(len, lines)) <= MOST_TICK_LINES:
        figure.set_figheight(HEIGHT + 0.12 * (max(map(len, lines)) - 1))
        axes.set_xticks(at, ["\n".join(name) for name in lines])
        return
    axes.set_xticks(at, shown)
    few = len(names) <= MOST_SLANTED
    figure.set_figheight(HEIGHT + (0.7 if few else 1.1))
    turn = {"rotation": 25, "horizontalalignment": "right", "rotation_mode": "anchor"} if few else {"rotation": 90}
    for label in axes.get_xticklabels():
        label.set(**turn)
        label.set_fontsize(7 if few else max(3.5, min(7.0, UPRIGHT / len(names))))


def _round_time(figure: Figure, numbers: Sequence[RunNumbers]) -> None:
    chosen = round_times(numbers)
    if not chosen:
        raise NothingToDrawError(f"no {unit(numbers)} was finished")
    axes = figure.add_subplot()
    boxes = axes.boxplot([one.seconds for one in chosen], widths=0.55, patch_artist=True, flierprops={"ms": 2.5})
    colours = of_transports(one.transport for one in chosen)
    for one, box in zip(chosen, boxes["boxes"], strict=True):
        box.set(facecolor=colours[one.transport], alpha=0.6)
    for middle in boxes["medians"]:
        middle.set_color("black")
    for position, one in enumerate(chosen, 1):
        if one.floor is not None:
            axes.hlines(
                one.floor, position - 0.4, position + 0.4, colors="black", linewidth=0.8, linestyles="--", label=FLOOR
            )
    _ticks(figure, axes, range(1, len(chosen) + 1), [one.name for one in chosen])
    axes.set_ylabel(f"time of {unit_with_article(numbers)} (s)")
    axes.set_ylim(bottom=0)
    axes.grid(visible=False, axis="x")
    _legend(figure, axes)


def _timeline(figure: Figure, run: Run) -> None:
    _lanes(figure, timeline(run), {kind: COLOUR_OF[kind] for kind in KINDS}, "no transfer was recorded")


def _workers(figure: Figure, run: Run) -> None:
    colours = {kind: workers.COLOUR_OF[kind] for kind in workers.KINDS}
    _lanes(figure, workers.timeline(run), colours, "no round was finished")


def _lanes(figure: Figure, shown: Timeline, colours: Mapping[str, str], nothing: str) -> None:
    """Draw the lanes of a timeline. If there are no bars, ``nothing`` says why."""
    if not shown.bars:
        raise NothingToDrawError(nothing)
    figure.set_figheight(max(1.6, min(8.0, 0.9 + 0.17 * len(shown.lanes))))
    axes = figure.add_subplot()
    rows = {lane: row for row, lane in enumerate(shown.lanes)}
    for kind, shade in colours.items():
        spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for bar in shown.bars:
            if bar.kind == kind:
                spans[bar.lane].append((bar.start, bar.end - bar.start))
        for lane, pairs in spans.items():
            axes.broken_barh(
                pairs,
                (rows[lane] - 0.35, 0.7),
                color=shade,
                alpha=0.4 if kind == "training" else 1,
                # The line keeps a bar visible that is narrower than a dot.
                linewidth=0 if kind == "training" else 0.5,
                label=kind,
            )
    for start in list(shown.starts.values())[:60]:
        axes.axvline(start, color=GREY, linewidth=0.5, linestyle=":", zorder=0)
    axes.set_yticks(range(len(rows)), [_name(lane, TICK) for lane in rows])
    axes.tick_params(axis="y", labelsize=7 if len(rows) <= 24 else 4.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    _room(axes, min(bar.start for bar in shown.bars), max(bar.end for bar in shown.bars))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(_clock(shown.note))
    _legend(figure, axes, columns=4 if len(colours) <= 4 else 3)


def _graph(figure: Figure, of: GraphNumbers) -> None:
    """Draw a graph, with slow nodes in red (udp-dpsgd, figure 3)."""
    figure.set_figheight(WIDTH)
    drawn = figure.add_subplot()
    points, slow = graphs.positions(len(of.nodes), of.edges), set(of.slow)
    for a, b in of.edges:
        drawn.plot(*zip(points[a], points[b], strict=True), color=GREY, linewidth=0.6, zorder=0)
    for point, node in zip(points, of.nodes, strict=False):
        shade = graphs.RED if node.node in slow else graphs.BLUE
        drawn.scatter(*point, s=40, color=shade, label="slow" if node.node in slow else None)
        drawn.annotate(_name(node.node, TICK), point, (0, 5), textcoords="offset points", ha="center", fontsize=5)
    drawn.set_axis_off()
    drawn.margins(0.12)


def _clock(note: str | None) -> str:
    """Return the label of a time axis, with a note about what was left out."""
    return "time on the server's clock of the run (s)" + ("\n" + note.replace(", ", "\n") if note else "")


def _room(axes: Axes, begin: float, end: float) -> None:
    """Leave some room at both ends of the time axis."""
    margin = 0.02 * (end - begin) or 0.5
    axes.set_xlim(begin - margin, end + margin)


def _links(figure: Figure, run: Run) -> None:
    shown, note = links_over_time(run, BINS)
    if not shown:
        raise NothingToDrawError(run.why_no_links())
    figure.set_figheight(3.4)
    upper, lower = figure.subplots(2, 1, sharex=True)
    links = list(dict.fromkeys(one.link for one in shown))
    for one in shown:
        style = {"color": colour(links.index(one.link)), "linewidth": 0.9, "linestyle": LINES.get(one.direction, "-")}
        upper.stairs(one.throughput / 1e6, one.edges, label=_name(one.name), baseline=None, **style)
        lower.stairs(one.queue_bytes / 1024, one.edges, baseline=None, **style)
    for one in distinct_rates(shown):
        upper.stairs(one.rate / 1e6, one.edges, baseline=None, color=GREY, linestyle="--", linewidth=0.8)
    upper.set_ylabel("carried (Mbit/s)")
    lower.set_ylabel("queue (KiB)")
    lower.set_xlabel(_clock(note))
    for axes in (upper, lower):
        axes.set_ylim(bottom=0)
    _legend(figure, upper)
