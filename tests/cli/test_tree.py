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


@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_levels_of_middle_nodes_are_said_to_be_left_out(file: str, tmp_path: Path, command: str) -> None:
    levels = tmp_path / "levels.toml"
    levels.write_text(f'{PLAN}top = "dedicated"\n[nodes]\nmiddle = 2\n')
    said = "middle nodes between these nodes and the top are left out"
    assert invoke("tree", command, str(levels))[1].splitlines()[1] == said
    assert said not in invoke("tree", command, str(levels), "--json")[1]
    assert said not in invoke("tree", command, file)[1]


def test_what_cannot_be_is_an_error_in_two_lines(file: str) -> None:
    code, out, err = invoke("tree", "plan", file, "--goal", "99")
    assert (code, out) == (2, "")
    assert err == (
        "error: job.goal is 99, and must be from 1 to 20\n"
        "hint: Make job.goal at least job.enough and at most job.clients\n"
    )


def test_a_tree_is_run_only_if_it_is_asked_for(file: str) -> None:
    code, _, err = invoke("run", file)
    assert code == 2
    assert "[tree] is for aggregation trees" in err
    assert "--aggregation tree" in err


def test_what_was_planned_is_shown(tmp_path: Path) -> None:
    decision = {
        "number": 2, "at": 4.0, "rate": 8.0, "seconds": 0.25, "queue": 2.0, "estimate": 3.5, "before": 3, "leaves": 2,
        "middle": True, "reasons": ["2 leaves and a middle, for a smoothed queue of 3.5 (now 2) at 2 a leaf"],
    }  # fmt: skip
    row = {
        "round": 1, "node": "server", "leaves": 2, "created": {"leaf": 3, "middle": 0}, "reused": {"middle": 1},
        "retired": 1, "died": 0, "plans": 2, "decisions": [decision],
    }  # fmt: skip
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "manifest.json").write_text('{"status": "complete"}')
    code, out, _ = invoke("tree", "watch", str(tmp_path))
    assert (code, out.splitlines()) == (
        0,
        ["nothing was planned: that takes tree.split = 'clients', or tree.scaling = 'knative'"],
    )
    (tmp_path / "workers.jsonl").write_text(json.dumps(row) + "\n")
    code, out, _ = invoke("tree", "watch", str(tmp_path))
    workers, plan = out.splitlines()
    assert code == 0
    assert workers == (
        "round 1, server: leaves 2; so far leaves created 3, middles created 0, leaves reused as middle 1, retired 1, "
        "died 0"
    )
    assert plan == (
        "  plan 2 at 4.0 s: 3 leaves become 2, for a queue of 2 updates, 3.5 smoothed (8 a second, 250 ms each): "
        "2 leaves and a middle, for a smoothed queue of 3.5 (now 2) at 2 a leaf"
    )
    load = {"node": "west", "clients": 6, "capacity": 4.0, "queue": 4.8, "seconds": 0.5, "residual": -0.8}
    moves = [{"client": client, "source": "west", "target": "east"} for client in ("e", "f")]
    balance = {"number": 3, "nodes": [load], "moves": moves, "reasons": ["west holds too much"]}
    moved = {"round": 2, "node": "root", "balance": balance}
    (tmp_path / "workers.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(moved)}\n")
    code, out, _ = invoke("tree", "watch", str(tmp_path))
    assert (code, out.splitlines()[2:]) == (
        0,
        ["before round 2: balance 3: e, f from west to east; west holds too much; load: west 4.8 of 4 (6 clients)"],
    )
    # The run was killed: nobody writes its journal.
    (tmp_path / "manifest.json").write_text('{"status": "running"}')
    for journal in (False, True):
        if journal:
            (tmp_path / "journal.jsonl").touch()
        assert invoke("tree", "watch", str(tmp_path))[:2] == (0, out)
    (tmp_path / "manifest.json").write_text('{"status": "complete"}')
    printed = json.loads(invoke("tree", "watch", str(tmp_path), "--json")[1])
    assert printed == {"status": "complete", "rounds": [row, moved]}
    code, _, err = invoke("tree", "watch", str(tmp_path / "nowhere"))
    assert (code, "is not the record of a run" in err) == (1, True)
