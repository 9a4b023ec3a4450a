"""The top of a page: how a run ended and who failed, the facts of its kind of job, or the answer of several runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.report.records import make
from tests.report.test_graphs import EVEN
from tests.report.test_graphs import record as a_graph
from tests.report.test_page import charts, read
from tests.report.test_workers import a_round, a_tree
from thalweg.report import report
from thalweg.report.numbers import numbers
from thalweg.report.opening import failures, headline, spans
from thalweg.report.source import read_run

FLOWER = {"app": {"object": "flower:apps/mine"}, "model": {}}


def sections(path: Path) -> list[str]:
    return re.findall(r'<h2 id="([a-z]+)">', path.read_text())


def sentence(path: Path) -> str:
    """Return the first sentence of a page."""
    match = re.search(r'<p class="verdict">(.*?)</p>', path.read_text())
    assert match is not None
    return match[1]


def said(path: Path) -> str:
    run = read_run(path)
    return headline(run, numbers(run))


def spoil(path: Path, lost: dict[int, str], reason: str) -> None:
    """Change the record: in each round of ``lost``, the update of the client named there does not count."""
    journal = path / "journal.jsonl"
    entries: list[dict[str, Any]] = [json.loads(line) for line in journal.read_text().splitlines()]
    for entry in entries:
        for part in entry["clients"]:
            if lost.get(entry["round"]) == part["client"]:
                part.update(state="lost", coverage=0.0, reason=reason)
    journal.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def test_one_run_opens_with_status_accuracy_and_what_time_went_into(wifi: Path, tmp_path: Path) -> None:
    report([wifi], tmp_path / "r.html")
    assert sections(tmp_path / "r.html")[:4] == ["run", "accuracy", "rounds", "communication"]
    assert sentence(tmp_path / "r.html") == (
        "2 clients over tcp: complete, 4 rounds in 6.00 s; accuracy 87.50 %; every update counted"
    )
    assert list(charts(read(tmp_path / "r.html")))[:2] == ["accuracy-rounds", "split"]


def test_it_says_who_failed_when_and_why(tmp_path: Path) -> None:
    path = make(tmp_path / "r", parquet=False)
    spoil(path, {1: "client-2", 2: "client-2", 4: "client-2"}, "the link broke")
    assert said(path).endswith("; 3 of 8 updates did not count, of 1 client")
    assert failures(read_run(path)) == ["client-2: lost in rounds 1 to 2, 4: the link broke"]
    report([path], tmp_path / "r.html")
    assert "<li>client-2: lost in rounds 1 to 2, 4: the link broke</li>" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ({"status": "failed", "reason": "no space is left"}, "failed after 4 of 9 rounds: no space is left"),
        ({"status": "interrupted"}, "interrupted after 4 of 9 rounds"),
        ({"status": "running"}, "not finished, 4 of 9 rounds so far: it still runs, or was killed"),
    ],
)
def test_a_run_that_did_not_end_well_says_so_first(tmp_path: Path, manifest: dict[str, str], words: str) -> None:
    path = make(tmp_path / "r", manifest=manifest, plan={"job": {"clients": 2, "rounds": 9}})
    assert words in said(path)


def test_a_flower_run_has_the_name_of_its_strategy(tmp_path: Path) -> None:
    path = make(tmp_path / "r", plan=FLOWER, manifest={"flower": "1.42.0", "strategy": "FedAdam"}, parquet=False)
    spoil(path, {2: "client-1"}, "ValueError: no data")
    out = tmp_path / "r.html"
    made = report([path], out)
    assert sentence(out).startswith("Flower&#x27;s FedAdam, 2 clients over tcp: complete")
    assert "<li>client-1: lost in round 2: ValueError: no data</li>" in out.read_text()
    assert made.runs[0].algorithm == "Flower's FedAdam"
    assert "fedavg" not in "\n".join(read(out).cells)


def test_a_flower_app_with_a_loop_of_its_own_has_no_strategy(tmp_path: Path) -> None:
    path = make(tmp_path / "r", plan=FLOWER, manifest={"flower": "1.42.0"})
    assert said(path).startswith("Flower app, 2 clients")
    assert numbers(read_run(path)).algorithm == "the Flower app's own"


def test_a_tree_opens_with_its_nodes_and_workers(tmp_path: Path) -> None:
    fold = {"did": [{**one, "node": "node-0"} for one in a_round(10.0)], "left_out": 0}
    path = a_tree(tmp_path / "tree", [fold, fold])
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "tree": {"system": "lifl", "died": 1}}))
    report([path], tmp_path / "r.html")
    assert sections(tmp_path / "r.html")[:2] == ["run", "workers"]
    assert next(iter(charts(read(tmp_path / "r.html")))) == "workers"
    assert "LIFL tree on 1 node, 1 worker; 1 of its workers died." in (tmp_path / "r.html").read_text()


def test_a_graph_opens_with_its_drawing(tmp_path: Path) -> None:
    report([a_graph(tmp_path / "ring", EVEN)], tmp_path / "r.html")
    assert sections(tmp_path / "r.html")[:2] == ["run", "graph"]
    assert next(iter(charts(read(tmp_path / "r.html")))) == "graph"
    assert sentence(tmp_path / "r.html").startswith("3 nodes over tcp: complete, 2 iterations")


def test_a_comparison_opens_with_the_answer(wifi: Path, tmp_path: Path) -> None:
    other = make(tmp_path / "other", plan={"transport": {"congestion": "cubic"}})
    made = report([wifi, other], tmp_path / "r.html")
    assert sections(tmp_path / "r.html")[0] == "answer"
    assert sentence(tmp_path / "r.html") == f"{next(iter(made.verdicts.values())).sentence}."
    assert next(iter(charts(read(tmp_path / "r.html")))) == "communication-time"


def test_runs_with_other_settings_repeat_nothing(tmp_path: Path) -> None:
    slow = make(tmp_path / "slow", plan={"transport": {"fanout": "sequential"}})
    made = report([make(tmp_path / "a"), make(tmp_path / "b"), slow], tmp_path / "r.html")
    assert [(cell.network, cell.runs) for cell in made.cells] == [
        ("wifi, fanout concurrent", 2),
        ("wifi, fanout sequential", 1),
    ]
    assert [run.setting for run in made.runs] == ["fanout concurrent"] * 2 + ["fanout sequential"]


def test_what_nobody_knows_has_no_row_and_no_section(bare: Path, tmp_path: Path) -> None:
    report([bare], tmp_path / "r.html")
    assert sections(tmp_path / "r.html") == [
        "run",
        "rounds",
        "communication",
        "summary",
        "timeline",
        "parties",
        "missing",
    ]
    rows = re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>', (tmp_path / "r.html").read_text())
    facts = dict(rows[: [name for name, _ in rows].index("seed") + 1])
    assert facts["model"] == "payload:1MB"
    assert not {"accuracy, last", "loss, last", "lower bound", "share of lower bound"} & set(facts)
    assert not {"-", ""} & set(facts.values())


def test_a_bound_is_named_where_one_is_drawn(bare: Path, wifi: Path, tmp_path: Path) -> None:
    for record, is_named in ((bare, False), (wifi, True)):
        report([record], tmp_path / "r.html")
        assert ("Dotted: the lower bound." in (tmp_path / "r.html").read_text()) == is_named


def test_a_column_of_rare_things_that_did_not_happen_is_left_out(wifi: Path, tmp_path: Path) -> None:
    report([wifi], tmp_path / "r.html")
    heads = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', (tmp_path / "r.html").read_text())
    assert {"lost on the link", "queue full", "CPU"} <= set(heads)
    assert not {"link down", "duplicated", "reordered", "limiter drops"} & set(heads)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [([3], "round 3"), ([1, 2, 3], "rounds 1 to 3"), ([1, 3, 4, 9], "rounds 1, 3 to 4, 9")],
)
def test_rounds_in_words(numbers: list[int], words: str) -> None:
    assert spans(numbers) == words
