"""Reports of jobs on a graph: which nodes are slow, what that costs, and the figures of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.record.lines import NODES, line
from tests.report.records import facts, make
from thalweg.advise.evidence import gather
from thalweg.plan import Plan
from thalweg.record.nodes import entry
from thalweg.record.tables import ON_GRAPHS, write_parquet
from thalweg.report import charts, report, tables
from thalweg.report.graphs import chart, graph, positions
from thalweg.report.numbers import labels, numbers
from thalweg.report.source import read_run


def record(folder: Path, *training: Mapping[str, float], parquet: bool = True, edges: Any = None) -> Path:
    """Write the record of a ring of three nodes with two iterations, from each node's seconds of training."""
    folder.mkdir(parents=True)
    plan = Plan.of({"job": {"graph": "ring", "clients": 3, "rounds": 2}, "model": {"name": "lenet"}})
    (folder / "plan.toml").write_text(plan.to_toml())
    said = {"word": "ring", "nodes": list(NODES), "spectral_gap": 1.0, "edges": edges or [[0, 1], [0, 2], [1, 2]]}
    (folder / "manifest.json").write_text(json.dumps({**facts(lab=False), "graph": said}))
    entries = [
        entry(number, {node: line(number, node, train=train[node], wait=0.2) for node in NODES}, 3)
        for number, train in ((1, training[0]), (2, training[-1]))
    ]
    (folder / "journal.jsonl").write_text("".join(json.dumps(one) + "\n" for one in entries))
    if parquet:
        write_parquet(folder, entries, ON_GRAPHS)
    return folder


EVEN = dict.fromkeys(NODES, 1.0)
ONE_SLOW = {**EVEN, "node-2": 20.0}


def test_a_slow_node_is_named_with_what_it_costs(tmp_path: Path) -> None:
    graph_numbers = graph(read_run(record(tmp_path / "run", ONE_SLOW)))
    assert graph_numbers is not None
    assert graph_numbers.slow == ["node-2"]
    assert graph_numbers.sentence == (
        "node-2 is slow: 20.0 times the training of the median node; its neighbours exchange for 210.0 ms an iteration"
    )
    by_name = {node.node: node for node in graph_numbers.nodes}
    assert (by_name["node-2"].train_seconds, by_name["node-2"].degree) == (20.0, 2)
    # The slow node ends 19 s after its two neighbours, which end at the same time.
    gaps = graph_numbers.finish_gap_seconds
    assert gaps is not None
    assert (gaps.mean, gaps.median, gaps.min, gaps.max) == pytest.approx((38 / 3, 9.5, 9.5, 19.0))
    assert graph_numbers.chunks_used == 1
    assert (graph_numbers.drift, graph_numbers.disagreement) == (0, 0)


def test_nodes_that_are_alike_are_said_to_be(tmp_path: Path) -> None:
    graph_numbers = graph(read_run(record(tmp_path / "run", {**EVEN, "node-3": 1.2}, parquet=False)))
    assert graph_numbers is not None
    assert graph_numbers.slow == []
    assert graph_numbers.sentence == "no node is much slower than the others: they train 1.00 s to 1.20 s an iteration"


def test_a_node_that_is_slow_only_now_and_then_is_not_called_slow(tmp_path: Path) -> None:
    graph_numbers = graph(read_run(record(tmp_path / "run", EVEN, {**EVEN, "node-2": 3.0})))
    assert graph_numbers is not None
    assert graph_numbers.slow == []
    assert graph_numbers.sentence == "no node is much slower than the others: they train 1.00 s to 2.00 s an iteration"


def test_the_graph_is_drawn_with_slow_nodes_in_red(tmp_path: Path) -> None:
    graph_numbers = graph(read_run(record(tmp_path / "run", ONE_SLOW)))
    assert graph_numbers is not None
    lines, nodes, slow = chart(graph_numbers).traces
    assert len(lines["x"]) == 9
    assert nodes["text"] == ["node-1", "node-3"]
    assert (slow["text"], slow["name"]) == (["node-2"], "slow nodes")
    assert slow["marker"]["color"] != nodes["marker"]["color"]


def test_nodes_have_their_places_each_time() -> None:
    edges = [(0, 1), (1, 2)]
    assert positions(3, edges) == positions(3, edges)
    assert len(set(positions(3, edges))) == 3
    assert len(positions(500, edges)) == 500


def test_the_page_says_first_who_is_slow_and_figures_show_it(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", ONE_SLOW)
    said = report([folder], tmp_path / "page.html", tmp_path / "figures")
    text = (tmp_path / "page.html").read_text()
    assert '<a href="#graph">Graph</a>' in text
    assert re.search(r'<p class="verdict">node-2 is slow: 20\.0 times[^<]*\.</p>', text)
    assert '<th scope="row">node-2</th>' in text
    assert said.runs[0].graph is not None
    assert said.runs[0].graph.slow == ["node-2"]
    assert {"graph.png", "graph.svg"} <= {Path(path).name for path in said.figures}
    assert said.runs[0].rounds == 2


def test_a_job_with_a_server_has_no_graph(tmp_path: Path) -> None:
    star, ring = make(tmp_path / "star"), record(tmp_path / "ring", EVEN)
    report([star], tmp_path / "one.html")
    assert '<a href="#graph">' not in (tmp_path / "one.html").read_text()
    said = report([star, ring], tmp_path / "two.html")
    assert [run.graph is None for run in said.runs] == [True, False]
    assert {cell.network for cell in said.cells} == {"wifi, 2 clients", "loopback, graph ring, 3 nodes"}
    assert '<a href="#graph">' in (tmp_path / "two.html").read_text()


def test_a_graph_has_nodes_and_iterations_where_others_have_clients_and_rounds(tmp_path: Path) -> None:
    star, ring = (numbers(read_run(path)) for path in (make(tmp_path / "star"), record(tmp_path / "ring", EVEN)))
    axis = {run.shape: charts.round_time([run]).layout["xaxis"]["title"]["text"] for run in (star, ring)}
    assert axis == {"star": "time of a round (s)", "graph": "time of an iteration (s)"}
    assert charts.round_time([star, ring]).layout["xaxis"]["title"]["text"] == "time of a round (s)"
    assert charts.by_round([ring], "loss")["xaxis"]["title"]["text"] == "iteration"
    assert labels([read_run(tmp_path / "star"), read_run(tmp_path / "ring")])[1].startswith("3 nodes")
    assert re.search(r"<th[^>]*>iterations</th>", tables.facts([ring])[0])
    assert re.search(r"<th[^>]*>rounds</th>", tables.facts([star])[0])


def test_a_damaged_graph_is_no_reason_to_fail(tmp_path: Path) -> None:
    odd = [[0, 1], [0, 99], [-1, 0], ["a", "b"], [True, 1], 7]
    graph_numbers = graph(read_run(record(tmp_path / "run", EVEN, edges=odd)))
    assert graph_numbers is not None
    assert graph_numbers.edges == [(0, 1)]


def test_a_graphs_exchanges_are_no_evidence_for_rounds(tmp_path: Path) -> None:
    record(tmp_path / "runs" / "ring", EVEN)
    records, left_out = gather([tmp_path / "runs"])
    assert records == []
    assert list(left_out.values()) == ["it has no server, and exchanges of its nodes are no rounds"]
