"""The reports of nodes become one entry for each iteration, in order, when all nodes have finished it."""

from __future__ import annotations

from typing import Any

from tests.record.lines import NODES, line
from thalweg.job.graph.entries import Collector
from thalweg.job.graph.lines import Finished


def said(number: int, node: str) -> Finished:
    return Finished.of({**line(number, node), "number": number})


def numbers(entries: Any) -> list[tuple[int, int]]:
    return [(entry["round"], entry["participants"]) for entry in entries]


def test_an_iteration_is_recorded_when_its_last_node_is_through() -> None:
    collector = Collector(NODES)
    assert numbers(collector.add("node-1", said(1, "node-1"))) == []
    assert numbers(collector.add("node-1", said(2, "node-1"))) == []
    assert numbers(collector.add("node-2", said(1, "node-2"))) == []
    assert numbers(collector.add("node-3", said(1, "node-3"))) == [(1, 3)]
    assert collector.working == list(NODES)


def test_a_node_that_skips_is_not_waited_for() -> None:
    collector = Collector(NODES)
    for number in (1, 2, 3):
        assert numbers(collector.add("node-1", said(number, "node-1"))) == []
        assert numbers(collector.add("node-2", said(number, "node-2"))) == []
    assert numbers(collector.add("node-3", said(3, "node-3"))) == [(1, 2), (2, 2), (3, 3)]


def test_a_node_that_is_gone_is_not_waited_for() -> None:
    collector = Collector(NODES)
    for node in NODES[:2]:
        assert numbers(collector.add(node, said(1, node))) == []
    assert numbers(collector.remove("node-3")) == [(1, 2)]
    assert collector.working == ["node-1", "node-2"]
    assert numbers(collector.remove("node-3")) == [], "it may be said twice"


def test_remaining_iterations_are_recorded_when_all_nodes_are_done() -> None:
    collector = Collector(NODES[:2])
    assert numbers(collector.add("node-1", said(1, "node-1"))) == []
    assert numbers(collector.add("node-1", said(2, "node-1"))) == []
    assert numbers(collector.remove("node-1")) == []
    assert numbers(collector.remove("node-2")) == [(1, 1), (2, 1)]
    assert collector.working == []
