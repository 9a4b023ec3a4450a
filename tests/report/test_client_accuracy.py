"""The page has the clients' evaluations of their own models if the server cannot evaluate a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.report.records import make
from tests.report.test_opening import said, sections
from tests.report.test_page import charts, read
from thalweg.report import report
from thalweg.report.numbers import numbers
from thalweg.report.source import read_run


def told(path: Path, **figures: float | None) -> Path:
    """Set these figures in each round of a record, and return the record's folder."""
    journal = path / "journal.jsonl"
    entries: list[dict[str, Any]] = [json.loads(line) for line in journal.read_text().splitlines()]
    journal.write_text("".join(json.dumps({**one, **figures}) + "\n" for one in entries))
    return path


def test_clients_that_evaluate_alone_are_on_the_page(tmp_path: Path) -> None:
    made = make(tmp_path / "r", parquet=False)
    path = told(made, accuracy=None, loss=None, client_accuracy=0.75, client_loss=0.5)
    run_numbers = numbers(read_run(path))
    assert (run_numbers.accuracy, run_numbers.client_accuracy, run_numbers.client_loss) == (None, 0.75, 0.5)
    assert [row.client_accuracy for row in run_numbers.each_round] == [0.75] * 4
    assert "clients' own accuracy 75.00 %" in said(path)
    report([path], tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert sections(tmp_path / "r.html")[:2] == ["run", "clients"]
    drawn = charts(read(tmp_path / "r.html"))["client-accuracy-rounds"]["traces"][0]
    assert (drawn["x"], drawn["y"]) == ([1, 2, 3, 4], [75.0] * 4)
    assert "clients&#x27; own accuracy, last" in page
    assert "no accuracy:" not in page
    assert "evaluated their own models" in read_run(path).why_no_accuracy()


def test_both_are_told_apart(tmp_path: Path) -> None:
    path = told(make(tmp_path / "r", parquet=False), client_accuracy=0.75)
    assert "accuracy 87.50 %; clients' own accuracy 75.00 %" in said(path)
    report([path, make(tmp_path / "other")], tmp_path / "r.html")
    assert {"accuracy-rounds", "client-accuracy-rounds"} <= set(charts(read(tmp_path / "r.html")))


def test_clients_may_have_a_loss_alone(tmp_path: Path) -> None:
    path = told(make(tmp_path / "r", parquet=False), accuracy=None, loss=None, client_loss=0.5)
    assert "clients' own loss 0.5" in said(path)
    assert "loss and no accuracy" in read_run(path).why_no_accuracy()
