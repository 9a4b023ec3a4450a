"""Figures in the papers' form, from what was measured: bars of communication time, lines of accuracy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from experiments.measured import Cell
from thalweg.report.charts import colour
from thalweg.report.figures import DOTS, SETTINGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEIGHT: Final = 2.6
# Draws the cells of one mode; said what the mode is.
Plot = Callable[[Sequence[Cell], str, Path], list[Path]]


def labels(cells: Sequence[Cell], axis: str) -> list[str]:
    """Return the labels of an axis, in the order of the cells."""
    return list(dict.fromkeys(cell.labels[axis] for cell in cells if axis in cell.labels))


def bars(cells: Sequence[Cell], title: str, file: Path, *, groups: str, panels: str = "model") -> list[Path]:
    """Draw seconds of all rounds: a panel for each label of ``panels``, a group of bars for each of ``groups``.

    The whiskers are the least and most of the runs, the black marks the lower bound. Returns the files.
    """
    figure, axes = _figure(labels(cells, panels), title)
    for axis, panel in zip(axes, labels(cells, panels), strict=True):
        _bars(axis, [cell for cell in cells if cell.labels[panels] == panel], groups)
        axis.set_title(panel.removeprefix("payload:"), fontsize=8)
    axes[0].set_ylabel("communication, s")
    return _save(figure, axes[0], file)


def _bars(axis: Axes, cells: Sequence[Cell], groups: str) -> None:
    places, cases = labels(cells, groups), labels(cells, "case")
    width = 0.8 / max(1, len(cases))
    for at, case in enumerate(cases):
        xs = [place + (at - (len(cases) - 1) / 2) * width for place in range(len(places))]
        found = [_one(cells, {groups: place, "case": case}) for place in places]
        shown = [(x, cell) for x, cell in zip(xs, found, strict=True) if cell and cell.numbers["seconds"] is not None]
        heights = [cell.numbers["seconds"] for _, cell in shown]
        runs = [cell.numbers["seconds_by_run"] for _, cell in shown]
        spread = [
            [height - min(run) for height, run in zip(heights, runs, strict=True)],
            [max(run) - height for height, run in zip(heights, runs, strict=True)],
        ]
        axis.bar(
            [x for x, _ in shown],
            heights,
            width * 0.9,
            yerr=spread,
            label=case,
            color=colour(at),
            error_kw={"linewidth": 0.8},
        )
        for x, cell in shown:
            if cell.numbers["bound_seconds"]:
                axis.hlines(cell.numbers["bound_seconds"], x - width * 0.45, x + width * 0.45, "black", linewidth=1)
    axis.set_xticks(range(len(places)), places)


def accuracy(cells: Sequence[Cell], title: str, file: Path, *, panels: str) -> list[Path]:
    """Draw the accuracy of the global model after each round, a line a case. Returns the files."""
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


def _one(cells: Sequence[Cell], place: dict[str, str]) -> Cell | None:
    return next((cell for cell in cells if cell.is_at(place)), None)


def _figure(panels: Sequence[str], title: str) -> tuple[Figure, list[Axes]]:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    mpl.rcdefaults()
    mpl.rcParams.update(SETTINGS)
    figure = Figure(figsize=(3.2 * len(panels), HEIGHT), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=8)
    drawn = figure.subplots(1, len(panels), squeeze=False)
    return figure, list(drawn[0])


def _save(figure: Figure, axis: Axes, file: Path) -> list[Path]:
    handles, words = axis.get_legend_handles_labels()
    figure.legend(handles, words, loc="outside lower center", ncols=max(1, len(words)))
    file.parent.mkdir(parents=True, exist_ok=True)
    files = [file.with_suffix(".png"), file.with_suffix(".svg")]
    figure.savefig(files[0], dpi=DOTS, metadata={"Software": None})
    figure.savefig(files[1], metadata={"Date": None, "Creator": None})
    return files
