"""Experiments as data: each of those there are makes bench plans, and its claims name what these measure."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from experiments import claims, measured
from experiments.plan import ROOT, Experiment, names
from experiments.results import filled
from experiments.run import draw, judge
from thalweg.bench import Matrix
from thalweg.bench.matrix import label
from thalweg.errors import PlanError

ALL = names()
STUDIES = sorted({name.partition("/")[0] for name in ALL})
# How the requirements' lines on each paper begin.
PREFIX = {"fedcomm": "F-", "unifl": "U-"}


def matrix(name: str, mode: str, scale: str) -> Matrix:
    return Matrix.of(Experiment.load(name).bench(mode, scale), name)


def made_up(name: str, value: float) -> dict[str, Any]:
    return {name: value, f"{name}_by_run": [value]}


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
    assert callable(importlib.import_module(f"experiments.{name.replace('/', '.')}.plot").plot)


@pytest.mark.parametrize("study", STUDIES)
def test_the_results_show_what_was_measured(study: str) -> None:
    from experiments.results import tables

    text = (ROOT / study / "RESULTS.md").read_text()
    assert filled(text, lambda figure: tables(f"{study}/{figure}")) == text
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
            numbers |= {"timeline": {name: [1.0, 2.0] for name in ("seconds", "cwnd", "in_flight", "window")}}
            cells.append({"labels": dict(cell.settings), "accuracy": [0.1, 0.1 + number / 1000], **numbers})
        parts[mode] = {"cells": cells}
    measured.write(tmp_path / "measured.json", name, "full", parts, list(experiment.modes))
    files = draw(name, tmp_path / "measured.json", tmp_path)
    assert len(files) == 2 * len(experiment.modes)
    assert all(file.stat().st_size > 1000 for file in files)
    found = judge(name, tmp_path / "measured.json")
    assert len(found) == len(claims.read(ROOT / name / "expected.json"))
    # Those that need another figure's numbers wait for them.
    here = [one for one in found if "base" not in one.claim]
    assert all(verdict.seen is not None for one in here for verdict in one.verdicts.values())


def test_names_that_are_none_are_refused() -> None:
    with pytest.raises(PlanError, match="fedcomm/fig08"):
        Experiment.load("fedcomm/fig99")
    with pytest.raises(PlanError, match="fair"):
        Experiment.load("fedcomm/fig03").bench("other", "full")
    with pytest.raises(PlanError, match="full"):
        Experiment.load("fedcomm/fig03").bench("paper", "other")
