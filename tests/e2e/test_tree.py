"""``thalweg run --aggregation tree``: worker processes fold what the server receives."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thalweg.record import Record

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sys.platform != "linux", reason="workers share memory as Linux alone does"),
]

Run = Callable[..., Any]


def test_a_tree_trains_the_same_model(result: Run, tmp_path: Path) -> None:
    def trained(name: str, *options: str) -> tuple[bytes, dict[str, Any]]:
        base = ["--model", "lenet", "--data", "digits", "--clients", "2", "--rounds", "1", "--deterministic"]
        done = result("run", *base, *options, "--record", name)
        path: Path = tmp_path / done["record"] / "checkpoint.safetensors"
        return path.read_bytes(), done

    star, plain = trained("star")
    tree, done = trained("tree", "--aggregation", "tree", "--workers", "2")
    assert star == tree
    assert "tree" not in plain
    found = done["tree"]
    assert set(found) == {
        "nodes_used", "workers", "aggregators_created", "died", "reused", "commits", "aggregation_completion_seconds",
        "handover_us", "cpu_seconds", "pool_bytes", "sums_bytes", "routes",
    }  # fmt: skip
    assert (found["nodes_used"], found["aggregators_created"], found["routes"]) == (1, found["workers"], "node")
    assert set(found["cpu_seconds"]) == {"server", "workers"}
    assert len(found["aggregation_completion_seconds"]) == 1
    assert Record(tmp_path / done["record"]).manifest["tree"]["workers"] == found["workers"]


def test_two_nodes_train_the_same_model(result: Run, tmp_path: Path) -> None:
    """The first node to finish is the top; tests/job/test_tree.py has the other one."""

    def trained(name: str, *options: str) -> tuple[bytes, dict[str, Any]]:
        base = ["--model", "lenet", "--data", "digits", "--clients", "3", "--rounds", "2", "--deterministic"]
        done = result("run", *base, *options, "--record", name)
        path: Path = tmp_path / done["record"] / "checkpoint.safetensors"
        return path.read_bytes(), done

    star, plain = trained("star")
    nodes = ("--nodes", "2", "--placement", "worst-fit")
    tree, done = trained("tree", "--aggregation", "tree", *nodes)
    assert star == tree
    assert [row["participants"] for row in done["rounds"]] == [3, 3]
    assert [row["accuracy"] for row in done["rounds"]] == [row["accuracy"] for row in plain["rounds"]]
    found = done["tree"]
    assert (found["nodes_used"], found["top"], found["aggregators_created"], found["died"]) == (
        2,
        "first-finished",
        2,
        0,
    )
    assert found["nodes"] == [{"node": "node-0", "clients": 2}, {"node": "node-1", "clients": 1}]
    assert set(found["cpu_seconds"]["gateways"]) == {"node-0", "node-1"}
    assert all(seconds > 0 for seconds in found["aggregation_completion_seconds"])
    record = Record(tmp_path / done["record"])
    for row in record.rounds():
        assert [node["counted"] for node in row["fold"]["nodes"]] == [2, 1]
        assert row["fold"]["between_bytes"] > 2 * done["update_bytes"]
        assert row["fold"]["top"] in ("node-0", "node-1")
        # Times of all nodes are on one clock: what a round took is not longer than the round.
        assert 0 < row["communication_seconds"] < row["seconds"] + 1
