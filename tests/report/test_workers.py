"""The timeline of a tree's workers: waiting, folding and handing over, from the journal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.report.records import make
from thalweg.report import details, figures, report, workers
from thalweg.report.numbers import numbers
from thalweg.report.source import read_run


def did(what: str, start: float, end: float, worker: int = 1, updates: int = 0, **more: Any) -> dict[str, Any]:
    return {"worker": worker, "what": what, "start": start, "end": end, "updates": updates, **more}


def a_round(begin: float, **node: Any) -> list[dict[str, Any]]:
    return [
        did("fold", begin + 1.0, begin + 1.5, updates=2, **node),
        did("commit", begin + 2.0, begin + 2.25, **node),
        did("mean", begin + 2.0, begin + 2.5, worker=0, **node),
    ]


def a_tree(folder: Path, timelines: list[Any], **more: Any) -> Path:
    """Write a record whose rounds, which begin at 10, 20, ... s, have these timelines."""
    plan = {"aggregation": {"shape": "tree"}}
    path = make(folder, rounds=len(timelines), plan=plan, parquet=False, manifest={"status": "running"}, **more)
    journal = path / "journal.jsonl"
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    for row, timeline in zip(rows, timelines, strict=True):
        row["fold"] |= {} if timeline is None else {"timeline": timeline}
    journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def drawn(run: Any, most: int = 3000) -> list[tuple[str, str, float, float]]:
    return [(bar.lane, bar.kind, bar.start, bar.end) for bar in workers.timeline(run, most).bars]


def test_a_worker_waits_folds_and_hands_over(tmp_path: Path) -> None:
    run = read_run(a_tree(tmp_path / "tree", [{"did": a_round(10.0), "left_out": 0}]))
    assert drawn(run) == [
        ("server worker 1", "waiting", 10.0, 11.0),
        ("server worker 1", "folding", 11.0, 11.5),
        ("server worker 1", "waiting", 11.5, 12.0),
        ("server worker 1", "handing over", 12.0, 12.25),
        ("server", "taking the mean", 12.0, 12.5),
    ]
    chart = details.workers_chart(run, 1)
    assert [trace["name"] for trace in chart.traces] == ["waiting", "folding", "handing over", "taking the mean"]
    (words,) = chart.traces[1]["hovertext"]
    assert words == "server worker 1, round 1<br>11 s to 11.5 s<br>2 updates"


def test_each_node_has_lanes_of_its_own_and_what_was_left_out_is_said(tmp_path: Path) -> None:
    both = [*a_round(10.0, node="node-10"), *a_round(10.0, node="node-2")]
    run = read_run(a_tree(tmp_path / "tree", [{"did": both, "left_out": 3}]))
    shown = workers.timeline(run)
    assert list(shown.lanes) == ["node-2", "node-2 worker 1", "node-10", "node-10 worker 1"]
    assert shown.note == "3 stretches were not recorded"


def test_a_process_that_starts_or_dies_is_shown(tmp_path: Path) -> None:
    both = [did("start", 9.0, 9.5), did("died", 10.5, 10.5), did("start", 10.5, 10.6)]
    run = read_run(a_tree(tmp_path / "tree", [{"did": both, "left_out": 0}]))
    assert [kind for _, kind, _, _ in drawn(run)] == ["starting", "waiting", "died", "starting"]


def test_there_are_no_more_bars_than_can_be_drawn(tmp_path: Path) -> None:
    run = read_run(a_tree(tmp_path / "tree", [{"did": a_round(10.0 * n), "left_out": 0} for n in (1, 2, 3)]))
    shown = workers.timeline(run, 6)
    assert (max(bar.round for bar in shown.bars), shown.note) == (2, "shown are rounds 1 to 2 of 3")


@pytest.mark.parametrize(
    "timeline",
    [None, 3, {}, {"did": 5}, {"did": [7, {"what": "fold"}, did("fold", "a", "b"), did("odd", 1, 2)]}],  # type: ignore[arg-type]
)
def test_a_round_that_says_nothing_of_its_workers_is_left_out(tmp_path: Path, timeline: Any) -> None:
    run = read_run(a_tree(tmp_path / "tree", [timeline]))
    assert drawn(run) == []
    assert details.workers_chart(run, 1).traces == []


def test_the_report_has_a_section_of_workers_for_trees_alone(tmp_path: Path, wifi: Path) -> None:
    tree = a_tree(tmp_path / "tree", [{"did": a_round(10.0), "left_out": 0}])
    out = tmp_path / "both.html"
    report([tree, wifi], out, figures=tmp_path / "figures")
    page = out.read_text()
    assert '<h2 id="workers">Tree</h2>' in page
    assert (tmp_path / "figures" / "workers-1-aggregation-tree.svg").exists()
    report([wifi], out)
    assert '<h2 id="workers">' not in out.read_text()


def test_the_figure_says_why_it_is_not_there(tmp_path: Path) -> None:
    run = read_run(a_tree(tmp_path / "tree", [None]))
    _, left_out = figures.draw([run], [numbers(run)], tmp_path / "figures")
    assert left_out["workers"] == "no round was finished"
