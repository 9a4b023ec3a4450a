"""The result of a job on a graph, read from its record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.record.lines import NODES, line
from thalweg.cli.summary import graph_lines, graph_summary
from thalweg.job.graph.result import GraphResult, statistics_of
from thalweg.machine import Usage
from thalweg.plan import Plan
from thalweg.record import RunRecord
from thalweg.record.nodes import entry

KEYS = (
    "graph", "nodes", "iterations", "iteration_seconds", "exchange_seconds", "chunks_used", "bytes_sent", "accuracy",
    "drift", "disagreement", "peak_rss_bytes", "record",
)  # fmt: skip


@pytest.fixture
def result(tmp_path: Path) -> GraphResult:
    plan = Plan.of({"job": {"graph": "ring", "clients": 3, "rounds": 2}, "record": {"folder": str(tmp_path)}})
    record = RunRecord.create(plan, {})
    record.append(entry(1, {node: line(1, node, wait=0.1 * at) for at, node in enumerate(NODES)}, 3))
    tested = {
        node: line(2, node, lost={"node-1": 500} if node == "node-2" else None, evaluation={"accuracy": accuracy})
        for node, accuracy in (("node-1", 0.5), ("node-2", 0.7))
    }
    record.append(entry(2, tested, 3))
    record.finish("complete")
    reports = {"node-1": Usage(None, 10), "node-2": Usage(None, 30), "node-3": Usage()}
    return GraphResult.of(plan, record, reports, {"node-3": "killed by signal 9"}, None)


def test_the_object_that_json_prints(result: GraphResult) -> None:
    table: Any = result.table()
    assert tuple(table) == KEYS
    assert (table["graph"], table["nodes"], table["iterations"]) == ("ring", 3, 2)
    # Waits of 0, 0.1 and 0.2 s, then twice 0.1 s.
    assert table["exchange_seconds"]["median"] == pytest.approx(0.11)
    assert table["exchange_seconds"]["mean"] == pytest.approx(0.11)
    assert table["exchange_seconds"]["std"] == pytest.approx((0.02 / 5) ** 0.5)
    assert table["iteration_seconds"]["median"] == pytest.approx(1.11)
    assert table["chunks_used"] == pytest.approx(0.95)
    assert table["bytes_sent"] == 5 * 2100
    assert table["accuracy"] == {"mean": pytest.approx(0.6), "std": pytest.approx(0.1)}
    assert (table["drift"], table["disagreement"]) == (0, 0)
    assert table["peak_rss_bytes"] == 30
    assert table["record"] == str(result.record.path)


def test_the_summary_says_who_is_gone(result: GraphResult) -> None:
    assert list(graph_lines(result)) == [
        "2 iterations of 3 nodes: 10.3 KiB sent, 95 % of the chunks used",
        "drift 0 an iteration, disagreement 0 at the end",
        "node-3 is gone: killed by signal 9",
    ]
    assert graph_summary(result).row_count == 3


def test_the_spread_of_nothing_is_none() -> None:
    assert statistics_of([]) is None
    assert statistics_of([1.0, 2.0, 6.0]) == {"mean": 3.0, "median": 2.0, "std": pytest.approx(14**0.5 / 3**0.5)}


def test_disagreement_is_that_of_the_last_iteration_with_several_nodes(tmp_path: Path) -> None:
    plan = Plan.of({"job": {"graph": "ring", "clients": 3, "rounds": 2}, "record": {"folder": str(tmp_path)}})
    record = RunRecord.create(plan, {})
    record.append(entry(1, {"node-1": line(1, "node-1", value=1.0), "node-2": line(1, "node-2", value=3.0)}, 3))
    record.append(entry(2, {"node-1": line(2, "node-1")}, 3))
    assert GraphResult.of(plan, record, {}, {}, None).disagreement == pytest.approx(0.5)
    record.close()
