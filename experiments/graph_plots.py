"""Figures of jobs on graphs: box plots of exchanges, learning curves, and graphs that mark nodes that finish last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from experiments.measured import Cell
from thalweg.report.colours import colour
from thalweg.report.graphs import positions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A panel of curves: its title, the keys of a point's x and y, the labels of both axes, and the factor by which y is
# multiplied.
Panel = tuple[str, str, str, str, float]
CURVES: Final[Sequence[Panel]] = (
    ("training loss", "round", "train_loss", "iteration", 1.0),
    ("test loss", "round", "loss", "iteration", 1.0),
    ("accuracy, %", "round", "accuracy", "iteration", 100.0),
    ("accuracy, %", "seconds", "accuracy", "seconds", 100.0),
)
OVER_TIME: Final = CURVES[-1]
SHADE: Final = 0.15
BOX_WIDTH: Final = 0.6


def boxes(axis: Axes, cells: Sequence[Cell]) -> None:
    """Draw the exchanges of each case as a box with its median, mean and whiskers."""
    with_box = [cell for cell in cells if cell.numbers.get("box")]
    names = ("whislo", "q1", "med", "q3", "whishi")
    stats = [
        {**dict(zip(names, (1e3 * one for one in cell.numbers["box"]), strict=True)),
         "mean": 1e3 * cell.numbers["exchange_mean"], "fliers": [], "label": cell.labels["case"]}
        for cell in with_box
    ]  # fmt: skip
    axis.bxp(stats, showfliers=False, showmeans=True, widths=BOX_WIDTH)
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("")
    axis.tick_params(axis="x", rotation=30)


def curves(axis: Axes, cells: Sequence[Cell], panel: Panel, cases: Sequence[str], *, titled: bool = True) -> None:
    """Draw a learning curve for each case, with a standard deviation over nodes in both directions.

    The colour of a case depends on its place among ``cases``. So it is the same in all panels, even if a panel lacks a
    case.
    """
    title, along, key, words, factor = panel
    for cell in cells:
        at = cases.index(cell.labels["case"])
        points = [point for point in cell.numbers.get("curve", ()) if point[key] is not None]
        xs = [point[along] for point in points]
        ys = [factor * point[key] for point in points]
        axis.plot(xs, ys, label=cell.labels["case"], color=colour(at))
        if points and f"{key}_std" in points[0]:
            far = [factor * point[f"{key}_std"] for point in points]
            low, high = ([y + sign * d for y, d in zip(ys, far, strict=True)] for sign in (-1, 1))
            axis.fill_between(xs, low, high, color=colour(at), alpha=SHADE, linewidth=0)
    axis.set_xlabel(words)
    if titled:
        axis.set_title(title, fontsize=8)


def network(axis: Axes, drawing: dict[str, Any]) -> None:
    """Draw a graph; the nodes that finished after all their neighbours are red."""
    nodes = 1 + max(max(edge) for edge in drawing["edges"])
    places = positions(nodes, [(a, b) for a, b in drawing["edges"]])
    for a, b in drawing["edges"]:
        axis.plot(*zip(places[a], places[b], strict=True), color="grey", linewidth=0.6, zorder=1)
    last = set(drawing["last"])
    hues = ["red" if node in last else "white" for node in range(nodes)]
    xs, ys = zip(*places, strict=True)
    axis.scatter(xs, ys, c=hues, edgecolors="black", s=40, zorder=2)
    for node, place in enumerate(places):
        axis.annotate(str(node), place, ha="center", va="center", fontsize=5)
    axis.set_axis_off()
