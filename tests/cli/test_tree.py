"""``thalweg tree``: its output as text and as JSON, its errors, and when `thalweg run` uses a tree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from thalweg.cli import app

PLAN = '[job]\nclients = 20\nrounds = 2\n[model]\nname = "payload:1MB"\n[tree]\nsplit = "clients"\nworkers = 64\n'


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return str(path)


def test_a_plan_is_printed_with_its_reasons(file: str) -> None:
    code, out, err = invoke("tree", "plan", file)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "lifl: 20 updates of 976.6 KiB, 5 nodes",
        "  node 0: 20 clients, 10 workers and a middle (start 10)",
        "notes between a node and its workers: inside the kernel where it can take them, else through the node",
        "why:",
        "  20 clients placed on 1 node by best fit: the fullest node with room",
        "  node 0: 10 leaves and a middle, for a smoothed queue of 20 (now 20) at 2 a leaf",
        "  the top is at node 0: no other has clients",
    ]


def test_options_go_over_the_plan(file: str) -> None:
    code, out, _ = invoke("tree", "plan", file, "--placement", "worst-fit", "--nodes", "2", "--json")
    printed = json.loads(out)
    assert (code, [tree["clients"] for tree in printed["plan"]["trees"]]) == (0, [10, 10])


def test_a_simulation_says_that_it_is_one(file: str) -> None:
    code, out, _ = invoke("tree", "simulate", file, "--system", "sl")
    lines = out.splitlines()
    assert (code, len(lines)) == (0, 4)
    assert lines[1].startswith("  round 1: completed in ")
    assert lines[-1].startswith("simulated, and not accepted")
    printed = json.loads(invoke("tree", "simulate", file, "--json")[1])
    assert (printed["simulated"], printed["accepted"], len(printed["rounds"])) == (True, False, 2)


def test_what_cannot_be_is_an_error_in_two_lines(file: str) -> None:
    code, out, err = invoke("tree", "plan", file, "--goal", "99")
    assert (code, out) == (2, "")
    assert err == "error: tree.goal is 99, and 20 clients take part\nhint: Make it at most that many\n"


def test_a_tree_is_run_only_if_it_is_asked_for(file: str) -> None:
    code, _, err = invoke("run", file)
    assert code == 2
    assert "[tree] is of aggregation trees" in err
    assert "--aggregation tree" in err
