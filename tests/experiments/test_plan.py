"""Experiments as data: each makes valid bench plans, and its claims refer to numbers that these measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import claims, measured, plots
from experiments.plan import ROOT, Experiment, Plot, names
from experiments.results import filled
from experiments.run import draw, judge
from thalweg.bench import Matrix
from thalweg.bench.matrix import label
from thalweg.errors import PlanError

ALL = names()
STUDIES = sorted({name.partition("/")[0] for name in ALL})
# Prefix of the ids of the requirements' lines on each paper.
PREFIX = {"lifl": "L-", "fedcomm": "F-", "fedrdma": "R-", "unifl": "U-", "udp-dpsgd": "D-"}


def matrix(name: str, mode: str, scale: str) -> Matrix:
    return Matrix.of(Experiment.load(name).bench(mode, scale), name)


def made_up(name: str, value: float) -> dict[str, Any]:
    return {name: value, f"{name}_by_run": [value]}


def on_graph(number: int) -> dict[str, Any]:
    """Return the numbers of a job on a graph of three nodes."""
    keys = ("exchange_mean", "exchange_std", "timeouts", "gap_mean", "last", "reached", "reached_std", "tested_loss")
    points = [{"round": at, "seconds": 2.0 * at, "accuracy": 0.1 * at, "accuracy_std": 0.01} for at in (1, 2)]
    return {
        **dict.fromkeys((*keys, "finish_seconds"), float(number)),
        "box": [0.01, 0.02, 0.03, 0.04, 0.05],
        "curve": [{**point, "loss": 2.0, "loss_std": 0.1, "train_loss": None} for point in points],
        "graph": {"edges": [[0, 1], [1, 2]], "last": [1]},
    }


@pytest.mark.parametrize("name", ALL)
def test_every_mode_at_every_scale_can_be_run(name: str) -> None:
    experiment = Experiment.load(name)
    assert {"full", "ci"} <= set(experiment.scales)
    for mode in experiment.modes:
        whole = {label(cell.settings) for cell in matrix(name, mode, "full").cells}
        small = {label(cell.settings) for cell in matrix(name, mode, "ci").cells}
        assert small <= whole


@pytest.mark.parametrize("name", ALL)
def test_modes_differ_in_what_labels_mean_and_not_in_labels(name: str) -> None:
    experiment = Experiment.load(name)
    first, *others = [experiment.axes(mode, "full") for mode in experiment.modes]
    assert all(other == first for other in others)


@pytest.mark.parametrize("name", ALL)
def test_cells_left_out_are_in_the_matrix_and_not_run(name: str) -> None:
    experiment = Experiment.load(name)
    for mode, way in experiment.modes.items():
        whole = matrix(name, mode, "full").cells
        run = [cell.number for cell in experiment.cells(mode, "full").cells]
        out = [cell.number for place in way.without for cell in whole if place.items() <= cell.settings.items()]
        assert len(out) >= len(way.without)
        assert sorted({*run, *out}) == [cell.number for cell in whole]
        assert not {*run} & {*out}


@pytest.mark.parametrize("name", ALL)
def test_claims_name_places_that_are_there(name: str) -> None:
    experiment = Experiment.load(name)
    axes = experiment.axes(next(iter(experiment.modes)), "full")
    for claim in claims.read(ROOT / name / "expected.json"):
        assert claim["id"].startswith(PREFIX[name.partition("/")[0]])
        assert claim.get("number", "seconds") in claims.NUMBERS
        for place in (claim["of"], claim.get("to", {})):
            assert all(value in axes[axis] for axis, value in place.items() if value != "*")
        for axis, values in claim.get("along", {}).items():
            assert set(values) <= set(axes[axis])
        if "base" in claim:
            assert (ROOT / name).with_name(claim["base"]).is_dir()


@pytest.mark.parametrize("name", ALL)
def test_a_folder_has_all_parts(name: str) -> None:
    assert (ROOT / name / "README.md").read_text().startswith("# ")


@pytest.mark.parametrize("name", ALL)
def test_a_figure_is_drawn_along_axes_that_are_there(name: str) -> None:
    experiment = Experiment.load(name)
    axes = experiment.axes(next(iter(experiment.modes)), "full")
    assert {experiment.plot.along, experiment.plot.panels, experiment.plot.last} <= {None, *axes}
    assert experiment.plot.graph in (None, *axes["case"])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kind": "pie"}, "bars"),
        ({"kind": "lines"}, "'lines' needs along"),
        ({"kind": "accuracy"}, "'accuracy' needs panels"),
        ({"kind": "lines", "along": "network", "panels": "model"}, "'lines' has no panels"),
        ({"kind": "flows", "along": "network"}, "'flows' has no along"),
        ({"kind": "boxes", "graph": "udp"}, "'boxes' has no graph"),
    ],
)
def test_a_plot_with_keys_that_are_not_of_its_kind_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Plot.model_validate(keys)


@pytest.mark.parametrize(
    ("commit", "marked"),
    [
        ("0123456789ab", None),
        ("0123456789ab-dirty", "commit 0123456789ab-dirty, with uncommitted changes"),
        (None, "commit not known"),
    ],
)
def test_a_build_with_uncommitted_changes_is_marked_in_figures(
    commit: str | None, marked: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cells = [{"labels": {"case": "cubic"}, "seconds": 1.0, "accuracy": [], "flows": {"client-1": 1e6}}]
    parts = {"lab": {"machine": {"commit": commit}, "cells": cells}}
    measured.write(tmp_path / "measured.json", "unifl/fig04", "full", parts, ["lab"])
    notes: list[str | None] = []

    def drawn(*_: object, note: str | None) -> list[Path]:
        notes.append(note)
        return []

    monkeypatch.setattr(plots, "draw", drawn)
    draw("unifl/fig04", tmp_path / "measured.json", tmp_path)
    assert notes == [marked]


@pytest.mark.parametrize("study", STUDIES)
def test_the_results_show_what_was_measured(study: str) -> None:
    text = (ROOT / study / "RESULTS.md").read_text()
    assert filled(text, study) == text, f"run python -m experiments results {study}"
    assert all(f"<!-- measured {name.rpartition('/')[2]} -->" in text for name in ALL if name.startswith(study))


@pytest.mark.parametrize("name", ALL)
def test_figures_and_verdicts_come_from_the_numbers(name: str, tmp_path: Path) -> None:
    experiment = Experiment.load(name)
    parts = {}
    for mode in experiment.modes:
        cells = []
        for number, cell in enumerate(matrix(name, mode, "full").cells, 1):
            numbers = {**made_up("seconds", number), **made_up("goodput", 1e6 * number)}
            numbers |= {"bound_seconds": number / 2, "ceiling": 2e6 * number, "lost": 0.2, "jain": 0.5, "clients": 2}
            numbers |= {"flows": {"client-1": 1e6 * number, "client-2": 2e6 * number}, "share": 0.5}
            numbers |= on_graph(number)
            numbers |= {
                **made_up("completion", number / 100),
                "hand_over": number / 1000,
                "taken": 0.1 * number,
                "cpu": number / 10,
            }
            numbers |= {
                "created": number,
                "active": 1.0 * number,
                "nodes_used": number,
                "time_to": 1.0 * number,
                "cpu_to": 2.0 * number,
            }
            numbers |= {"timeline": {name: [1.0, 2.0] for name in ("seconds", "cwnd", "in_flight", "window")}}
            cells.append({"labels": dict(cell.settings), "accuracy": [0.1, 0.1 + number / 1000], **numbers})
        parts[mode] = {"cells": cells}
    measured.write(tmp_path / "measured.json", name, "full", parts, list(experiment.modes))
    files = draw(name, tmp_path / "measured.json", tmp_path)
    assert len(files) == 2 * len(experiment.modes)
    assert all(file.stat().st_size > 1000 for file in files)
    judged = judge(name, tmp_path / "measured.json")
    assert len(judged) == len(claims.read(ROOT / name / "expected.json"))
    # Claims that need another figure's numbers cannot be judged yet.
    here = [one for one in judged if "base" not in one.claim]
    assert {verdict.seen for one in here for verdict in one.verdicts.values()} <= {claims.ONE_RUN}


def test_names_that_are_none_are_refused() -> None:
    with pytest.raises(PlanError, match="fedcomm/fig08"):
        Experiment.load("fedcomm/fig99")
    with pytest.raises(PlanError, match="fair"):
        Experiment.load("fedcomm/fig03").bench("other", "full")
    with pytest.raises(PlanError, match="full"):
        Experiment.load("fedcomm/fig03").bench("paper", "other")
