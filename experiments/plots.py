"""Figures in the papers' form, from measurements: bars, lines, boxes and curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from experiments import graph_plots
from experiments.measured import Cell
from experiments.plan import Plot
from thalweg.report.colours import colour
from thalweg.report.figures import DOTS, SETTINGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEIGHT: Final = 2.6
# Width in inches of a panel among several, and of a single panel.
PANEL: Final = 3.2
ALONE: Final = 5.6
# If a figure's legend has more entries than this, it has two rows.
ABREAST: Final = 6


@dataclass(frozen=True)
class Quantity:
    """A quantity to plot: the key of a cell's number, the label, the factor, and the key for the black mark."""

    number: str
    words: str
    factor: float = 1.0
    mark: str | None = None

    def of(self, cell: Cell) -> float | None:
        """Return the cell's number times the factor; None if it is unknown."""
        value = cell.numbers.get(self.number)
        return None if value is None else self.factor * value

    def runs(self, cell: Cell) -> list[float]:
        """Return the number of each run of the cell, times the factor."""
        return [self.factor * value for value in cell.numbers[f"{self.number}_by_run"] if value is not None]

    def marked(self, cell: Cell) -> float | None:
        """Return the position of the mark; None without one, as for FedComm's measure, which has no bound."""
        ways = cell.numbers.get("seconds_by_accounting", {})
        if self.number == "seconds" and cell.numbers.get("seconds") != ways.get("measured"):
            return None
        value = cell.numbers.get(self.mark) if self.mark else None
        return self.factor * value if value else None


SECONDS: Final = Quantity("seconds", "communication, s", mark="bound_seconds")
COMPLETION: Final = Quantity("completion", "completion of a round, ms", 1e3)
GOODPUT: Final = Quantity("goodput", "goodput, Mbit/s", 1e-6, mark="ceiling")


def draw(
    plot: Plot, quantity: str, cells: Sequence[Cell], title: str, file: Path, *, note: str | None = None
) -> list[Path]:
    """Draw the cells of one mode as ``plot`` says, to ``file`` with each suffix; return the files.

    ``note`` is printed under the title.
    """
    shown = {"goodput": GOODPUT, "aggregation": COMPLETION}.get(quantity, SECONDS)
    if plot.last is not None:
        label = cells[-1].labels[plot.last]
        cells = [cell for cell in cells if cell.labels[plot.last] == label]
        title = f"{title}, {plot.last} {label}"
    title = title if note is None else f"{title}\n{note}"
    # ``Plot`` has checked that the keys of its kind are present.
    along, panels = str(plot.along), str(plot.panels)
    if plot.kind == "bars":
        return bars(cells, title, file, groups=along, panels=plot.panels, shown=shown)
    if plot.kind == "lines":
        return lines(cells, title, file, along=along, shown=shown)
    if plot.kind == "accuracy":
        return accuracy(cells, title, file, panels=panels)
    if plot.kind == "boxes":
        return boxes(cells, title, file, panels=plot.panels)
    if plot.kind == "learning":
        return learning(cells, title, file, panels=plot.panels, graph=plot.graph)
    return (flows if plot.kind == "flows" else timelines)(cells, title, file)


def labels(cells: Sequence[Cell], axis: str) -> list[str]:
    """Return the labels of an axis, in the order of the cells."""
    return list(dict.fromkeys(cell.labels[axis] for cell in cells if axis in cell.labels))


def bars(
    cells: Sequence[Cell],
    title: str,
    file: Path,
    *,
    groups: str,
    panels: str | None,
    shown: Quantity,
) -> list[Path]:
    """Draw a quantity as bars: a group for each label of ``groups``, and a panel for each label of ``panels``.

    Whiskers show the minimum and the maximum over runs. A black mark shows the bound of a time or the ceiling of a
    goodput. Returns the files.
    """
    parts = [""] if panels is None else labels(cells, panels)
    figure, axes = _figure(parts, title, ALONE if panels is None else PANEL)
    for axis, panel in zip(axes, parts, strict=True):
        _bars(axis, [cell for cell in cells if panels is None or cell.labels[panels] == panel], groups, shown)
        axis.set_title(panel.removeprefix("payload:"), fontsize=8)
    axes[0].set_ylabel(shown.words)
    return _save(figure, axes[0], file)


def _bars(axis: Axes, cells: Sequence[Cell], groups: str, shown: Quantity) -> None:
    places, cases = labels(cells, groups), labels(cells, "case")
    width = 0.8 / max(1, len(cases))
    for at, case in enumerate(cases):
        xs = [place + (at - (len(cases) - 1) / 2) * width for place in range(len(places))]
        row = [_one(cells, {groups: place, "case": case}) for place in places]
        bars = [(x, cell, shown.of(cell)) for x, cell in zip(xs, row, strict=True) if cell]
        drawn = [(x, cell, height) for x, cell, height in bars if height is not None]
        heights = [height for _, _, height in drawn]
        spread = [
            [height - min(shown.runs(cell)) for _, cell, height in drawn],
            [max(shown.runs(cell)) - height for _, cell, height in drawn],
        ]
        xs = [x for x, _, _ in drawn]
        whiskers = {"linewidth": 0.8}
        axis.bar(xs, heights, width * 0.9, yerr=spread, label=case, color=colour(at), error_kw=whiskers)
        for x, cell, _ in drawn:
            mark = shown.marked(cell)
            if mark is not None:
                axis.hlines(mark, x - width * 0.45, x + width * 0.45, "black", linewidth=1)
    axis.set_xticks(range(len(places)), places)


def lines(cells: Sequence[Cell], title: str, file: Path, *, along: str, shown: Quantity) -> list[Path]:
    """Draw a quantity over the labels of ``along``: a line for each case, and the ceiling in black. Return the files.

    The scale is logarithmic, because the greatest and the least value differ by a factor of a hundred.
    """
    figure, (axis,) = _figure([""], title, ALONE)
    places = labels(cells, along)
    for at, case in enumerate(labels(cells, "case")):
        row = [_one(cells, {along: place, "case": case}) for place in places]
        drawn = [(x, cell, shown.of(cell)) for x, cell in enumerate(row) if cell]
        points = [(x, cell, height) for x, cell, height in drawn if height]
        for x, cell, _ in points:
            axis.vlines(x, min(shown.runs(cell)), max(shown.runs(cell)), colour(at), linewidth=0.8)
        axis.plot([x for x, _, _ in points], [y for _, _, y in points], label=case, color=colour(at), marker=".")
    marks = [(x, shown.marked(cell)) for x, at in enumerate(places) for cell in cells if cell.labels[along] == at]
    limits = {x: mark for x, mark in marks if mark is not None}
    axis.plot(list(limits), list(limits.values()), "--", label="ceiling", color="black", linewidth=0.8)
    _in_logs(axis)
    axis.set_xticks(range(len(places)), places)
    axis.set_ylabel(shown.words)
    return _save(figure, axis, file)


def flows(cells: Sequence[Cell], title: str, file: Path) -> list[Path]:
    """Draw the goodput of each client as bars, in a group for each case. Returns the files."""
    figure, (axis,) = _figure([""], title, ALONE)
    cases = labels(cells, "case")
    clients = list(dict.fromkeys(name for cell in cells for name in cell.numbers["flows"]))
    width = 0.8 / max(1, len(clients))
    for at, client in enumerate(clients):
        rates = [(_one(cells, {"case": case}), x) for x, case in enumerate(cases)]
        bars = [(x, cell.numbers["flows"].get(client)) for cell, x in rates if cell is not None]
        xs = [x + (at - (len(clients) - 1) / 2) * width for x, rate in bars if rate]
        axis.bar(xs, [1e-6 * rate for _, rate in bars if rate], width * 0.9, label=client, color=colour(at))
    axis.set_xticks(range(len(cases)), cases)
    axis.set_ylabel("goodput of a client, Mbit/s")
    return _save(figure, axis, file)


def timelines(cells: Sequence[Cell], title: str, file: Path) -> list[Path]:
    """Draw the senders' windows and packets in flight over time, in a panel for each case. Returns the files."""
    with_timeline = [cell for cell in cells if cell.numbers["timeline"]]
    figure, axes = _figure([cell.labels["case"] for cell in with_timeline], title)
    most = max((max(cell.numbers["timeline"]["window"]) for cell in with_timeline), default=1)
    words = {"cwnd": "congestion window", "in_flight": "in flight", "window": "receiver's window"}
    for axis, cell in zip(axes, with_timeline, strict=True):
        for at, (name, meaning) in enumerate(words.items()):
            axis.plot(
                cell.numbers["timeline"]["seconds"], cell.numbers["timeline"][name], label=meaning, color=colour(at)
            )
        axis.set_title(cell.labels["case"], fontsize=8)
        _in_logs(axis)
        axis.set_ylim(1, 2 * most)
        axis.set_xlabel("seconds")
    axes[0].set_ylabel("packets")
    return _save(figure, axes[0], file)


def accuracy(cells: Sequence[Cell], title: str, file: Path, *, panels: str) -> list[Path]:
    """Draw the global model's accuracy after each round, with a line for each case. Returns the files."""
    figure, axes = _figure(labels(cells, panels), title)
    for axis, panel in zip(axes, labels(cells, panels), strict=True):
        for place, case in enumerate(labels(cells, "case")):
            cell = _one(cells, {panels: panel, "case": case})
            if cell is not None and cell.numbers["accuracy"]:
                values = [
                    (at, 100 * value) for at, value in enumerate(cell.numbers["accuracy"], 1) if value is not None
                ]
                axis.plot(*zip(*values, strict=True), label=case, color=colour(place))
        axis.set_title(panel, fontsize=8)
        axis.set_xlabel("round")
    axes[0].set_ylabel("accuracy, %")
    return _save(figure, axes[0], file)


def boxes(cells: Sequence[Cell], title: str, file: Path, *, panels: str | None) -> list[Path]:
    """Draw the exchanges of each case as boxes, a panel for each label of ``panels``. Returns the files."""
    parts = [""] if panels is None else labels(cells, panels)
    figure, axes = _figure(parts, title, ALONE if panels is None else PANEL)
    for axis, panel in zip(axes, parts, strict=True):
        graph_plots.boxes(axis, [cell for cell in cells if panels is None or cell.labels[panels] == panel])
        axis.set_title(panel, fontsize=8)
    axes[0].set_ylabel("exchange, ms")
    return _save(figure, axes[0], file)


def learning(cells: Sequence[Cell], title: str, file: Path, *, panels: str | None, graph: str | None) -> list[Path]:
    """Draw accuracy over time in a panel for each label of ``panels``; without ``panels``, losses and accuracy.

    The graph of the case ``graph`` is drawn beside them.
    """
    cases = labels(cells, "case")
    parts = labels(cells, panels) if panels is not None else [shown[0] for shown in graph_plots.CURVES]
    figure, axes = _figure([*parts, *([] if graph is None else [graph])], title)
    if panels is None:
        for axis, shown in zip(axes, graph_plots.CURVES, strict=False):
            graph_plots.curves(axis, cells, shown, cases)
    else:
        for axis, panel in zip(axes, parts, strict=False):
            chosen = [cell for cell in cells if cell.labels[panels] == panel]
            graph_plots.curves(axis, chosen, graph_plots.OVER_TIME, cases, titled=False)
            axis.set_title(panel, fontsize=8)
        axes[0].set_ylabel(graph_plots.OVER_TIME[0])
    one = None if graph is None else _one(cells, {"case": graph})
    if one is not None and one.numbers.get("graph"):
        graph_plots.network(axes[-1], one.numbers["graph"])
        axes[-1].set_title(f"{graph}: last of their neighbours", fontsize=8)
    return _save(figure, axes[0], file)


def _in_logs(axis: Axes) -> None:
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("")


def _one(cells: Sequence[Cell], place: dict[str, str]) -> Cell | None:
    return next((cell for cell in cells if cell.is_at(place)), None)


def _figure(panels: Sequence[str], title: str, width: float = PANEL) -> tuple[Figure, list[Axes]]:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    mpl.rcdefaults()
    mpl.rcParams.update(SETTINGS)
    figure = Figure(figsize=(width * len(panels), HEIGHT), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=8)
    drawn = figure.subplots(1, len(panels), squeeze=False)
    return figure, list(drawn[0])


def _save(figure: Figure, axis: Axes, file: Path) -> list[Path]:
    handles, words = axis.get_legend_handles_labels()
    abreast = len(words) if len(words) <= ABREAST else (len(words) + 1) // 2
    figure.legend(handles, words, loc="outside lower center", ncols=max(1, abreast))
    file.parent.mkdir(parents=True, exist_ok=True)
    files = [file.with_suffix(".png"), file.with_suffix(".svg")]
    figure.savefig(files[0], dpi=DOTS, metadata={"Software": None})
    figure.savefig(files[1], metadata={"Date": None, "Creator": None})
    return files
