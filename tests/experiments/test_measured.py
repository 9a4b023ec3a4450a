"""Which earlier measurements a new run replaces and which it keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import measured
from experiments.run import folder_for
from thalweg.bench import BenchPlan
from thalweg.bench.results import figures
from thalweg.bench.values import Outcome, Results, RoundTimes, RunNumbers
from thalweg.machine import Build, Hardware

ORDER = ["paper", "fair"]


def part(seconds: float) -> dict[str, Any]:
    return {"cells": [{"labels": {"case": "tcp"}, "seconds": seconds}]}


def seconds(file: Path) -> dict[str, float]:
    return {mode: cells[0].numbers["seconds"] for mode, cells in measured.read(file).items()}


def test_modes_that_were_not_run_stay_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    measured.write(file, "study/figure", "full", {"fair": part(1.0)}, ORDER)
    measured.write(file, "study/figure", "full", {"paper": part(2.0)}, ORDER)
    assert list(seconds(file).items()) == [("paper", 2.0), ("fair", 1.0)]
    measured.write(file, "study/figure", "full", {"fair": part(3.0)}, ORDER)
    assert seconds(file) == {"paper": 2.0, "fair": 3.0}


def test_results_of_another_scale_or_unknown_mode_are_removed(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    measured.write(file, "study/figure", "full", {"old": part(1.0)}, ["old"])
    measured.write(file, "study/figure", "full", {"paper": part(2.0)}, ORDER)
    assert seconds(file) == {"paper": 2.0}
    measured.write(file, "study/figure", "ci", {"fair": part(3.0)}, ORDER)
    assert seconds(file) == {"fair": 3.0}
    file.write_text("damaged")
    measured.write(file, "study/figure", "ci", {"paper": part(4.0)}, ORDER)
    assert seconds(file) == {"paper": 4.0}


def bench(commit: str | None = "0123456789ab") -> Results:
    """Return the results of a bench of one cell with two runs."""
    runs = [
        Outcome(
            cell=1, repetition=at + 1, settings={"case": "tcp"}, status="complete", reason=None, record=None,
            seconds=1.0, started=f"2026-11-2{at}T10:00:00.000+00:00",
            numbers=RunNumbers(
                rounds=[RoundTimes(1, 1.0 + at, 1.0 + at, None, None, complete=True, accuracy=0.5 + 0.1 * at)]
            ),
        )
        for at in range(2)
    ]  # fmt: skip
    return Results(
        folder="bench", status="complete", left=0, failed=0, accounting="measured", repetitions=2, seed=0, answers=[],
        axes={"case": ["tcp"]}, cells=[figures(1, {"case": "tcp"}, "complete", [], runs)], runs=runs, kernel="Linux",
        thalweg=Build("0.1.0", commit, "x86_64-linux", debug=False), machine=Hardware("x86_64", "A processor", 2, None),
        versions={},
    )  # fmt: skip


def test_the_origin_of_a_measurement_is_kept(tmp_path: Path) -> None:
    how = {"command": "python -m experiments run a/b", "commit": "ba9876543210", "load": {"mean": 0.1, "most": 0.2}}
    part = measured.of_bench(bench(), {1: {"goodput": 2.0, "by_run": [{"goodput": 1.5}, {"goodput": 2.5}]}}, how)
    measured.write(tmp_path / "measured.json", "a/b", "ci", {"fair": part}, ORDER)
    origin = measured.origins(tmp_path / "measured.json")["fair"]
    assert (origin.commit, origin.core, origin.command) == ("ba9876543210", "0123456789ab", how["command"])
    assert (origin.began, origin.load, origin.is_exact) == ("2026-11-20T10:00:00.000+00:00", how["load"], True)
    (cell,) = measured.read(tmp_path / "measured.json")["fair"]
    runs = [cell.in_run(at) for at in range(cell.runs)]
    assert [None if run is None else run.numbers["seconds"] for run in runs] == [1.0, 2.0]
    assert [None if run is None else run.numbers["goodput"] for run in runs] == [1.5, 2.5]
    assert [None if run is None else run.numbers["accuracy"] for run in runs] == [[0.5], [0.6]]
    assert cell.in_run(2) is None


@pytest.mark.parametrize(("commit", "core"), [(None, "a"), ("a", None), ("a-dirty", "a"), ("a", "a-dirty")])
def test_code_that_nobody_can_build_again_is_not_exact(tmp_path: Path, commit: str | None, core: str | None) -> None:
    part = measured.of_bench(bench(core), None, {"commit": commit})
    measured.write(tmp_path / "measured.json", "a/b", "ci", {"fair": part}, ORDER)
    assert not measured.origins(tmp_path / "measured.json")["fair"].is_exact


def test_plain_numbers_of_each_run_are_kept() -> None:
    tables = [{"goodput": 1.23456789, "last": 5, "box": [1.0], "system": "lifl", "off": None, "whole": True}]
    assert measured.scalars(tables) == [{"goodput": 1.235, "last": 5, "off": None}]


def test_only_the_same_code_goes_on_with_a_bench(tmp_path: Path) -> None:
    plan = BenchPlan.of({"repetitions": 1, "matrix": {"transport": ["tcp"]}})
    origin = {"commit": "0123456789ab", "core": "0123456789ab"}
    begun = folder_for(tmp_path / "fair", plan, origin)
    assert folder_for(tmp_path / "fair", plan, origin) == begun
    more = plan.with_repetitions(3)
    assert folder_for(tmp_path / "fair", more, origin) == begun
    assert begun.plan() == more
    assert folder_for(tmp_path / "fair", plan, {**origin, "commit": "ba9876543210"}) != begun
    other = BenchPlan.of({"matrix": {"transport": ["udp"]}})
    assert folder_for(tmp_path / "fair", other, origin) != begun
