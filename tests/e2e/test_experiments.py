"""A paper's experiment at its smallest, from the command to numbers, figure and verdicts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import why_no_lab

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


def experiment(*arguments: str) -> str:
    command = [sys.executable, "-m", "experiments", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")
def test_figure_3_runs_in_both_modes_and_is_not_run_twice(tmp_path: Path) -> None:
    arguments = ("run", "fedcomm/fig03", "--scale", "ci", "--out", str(tmp_path), "--json")
    judged = json.loads(experiment(*arguments))
    assert {mode for one in judged for mode in one["modes"]} == {"paper", "fair"}
    here = tmp_path / "fedcomm" / "fig03" / "ci"
    modes = json.loads((here / "measured.json").read_text())["modes"]
    for part in modes.values():
        assert {cell["labels"]["case"] for cell in part["cells"]} == {"tcp", "udp"}
        assert all(cell["status"] == "complete" and cell["seconds"] is not None for cell in part["cells"])
    assert all(cell["seconds"] >= cell["bound_seconds"] for cell in modes["fair"]["cells"])
    assert all((here / f"fig03-{mode}.png").is_file() for mode in modes)
    before = sorted(here.glob("*/*/records/*"))
    experiment(*arguments)
    assert sorted(here.glob("*/*/records/*")) == before


@pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")
def test_figure_7_watches_the_sender_that_it_masks(tmp_path: Path) -> None:
    experiment("run", "unifl/fig07", "--scale", "ci", "--out", str(tmp_path), "--json")
    measured = json.loads((tmp_path / "unifl" / "fig07" / "ci" / "measured.json").read_text())
    (cell,) = measured["modes"]["lab"]["cells"]
    assert cell["status"] == "complete"
    assert 0 < cell["goodput"] <= cell["ceiling"]
    assert 0 < cell["missing"] < 0.05
    assert len(cell["timeline"]["seconds"]) > 1


def test_there_is_a_list() -> None:
    assert {"fedcomm/fig08", "unifl/fig02"} <= set(json.loads(experiment("list", "--json")))
