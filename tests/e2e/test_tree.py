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
