"""Learning curves of nodes."""

from __future__ import annotations

from experiments import graph_plots
from experiments.measured import Cell
from thalweg.report.colours import colour


def learned(case: str) -> Cell:
    point = {"round": 1, "seconds": 2.0, "accuracy": 0.5, "accuracy_std": 0.1}
    return Cell({"case": case}, {"curve": [point, {**point, "seconds": 4.0}]})


def test_a_case_has_its_colour_also_where_another_was_not_run() -> None:
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    graph_plots.curves(axis, [learned("udp"), learned("ltp")], graph_plots.OVER_TIME, ["udp", "tcp", "ltp"])
    drawn = {line.get_label(): line.get_color() for line in axis.get_lines()}
    assert drawn == {"udp": colour(0), "ltp": colour(2)}
