"""The tables of RESULTS.md, from cells."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from experiments import measured, results
from experiments.plan import ROOT, Experiment, names

NAME = "unifl/fig04"


def cell(case: str, **numbers: Any) -> dict[str, Any]:
    return {"labels": {"case": case}, "status": "complete", "seconds": 1.0, "accuracy": [], **numbers}


def test_goodput_and_what_it_cost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known: dict[str, Any] = {
        "goodput": 95e6,
        "share": 0.98,
        "missing": 0.01,
        "lost": 0.012,
        "queue_seconds": 0.004,
        "clients": 5,
    }
    known |= {"flows": {"client-1": 19e6, "client-2": 20e6}}
    cells = [cell("cubic", **known, queue_seconds_max=0.04, slowest=19e6, jain=0.99), cell("no control", clients=0)]
    part = {"machine": {"commit": "0123456789ab-dirty"}, "cells": cells}
    folder = tmp_path / NAME
    measured.write(folder / measured.FILE, NAME, "full", {"lab": part}, ["lab"])
    (folder / "expected.json").write_text((ROOT / NAME / "expected.json").read_text())
    experiment = Experiment.load(NAME)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr("experiments.run.ROOT", tmp_path)
    monkeypatch.setattr(Experiment, "load", classmethod(lambda _cls, _name: experiment))
    text = results.tables(NAME)
    assert text.startswith("- Mode lab: scale `full`, 1 run of each cell; commit 0123456789ab-dirty, with uncommitted ")
    assert "date not recorded; load not recorded." in text
    assert "nobody knows which" in text
    assert "| lab\u2020 | cubic | 95 | 98 | 19 | 0.99 | 1 | 1.2 | 4 | 40 |" in text
    assert "| lab\u2020 | no control | complete | - | - | - | - | - | - | - |" in text
    assert "| claim | the paper says | holds if | mode lab\u2020 |" in text
    assert (
        "| U-M10 | UniFL shares alike among the flows of a round | unifl cubic has a Jain's index of at least 0.9 "
        "| not measured: without unifl cubic |"
    ) in text


# Heads of tables that may be written by hand: about columns, conditions and things that were not measured. Tables of
# numbers are generated between marks.
WORDS = {"| column | meaning |", "| figure or table | why |"}


@pytest.mark.parametrize("study", sorted({name.partition("/")[0] for name in names()}))
def test_no_table_of_figures_is_written_by_hand(study: str) -> None:
    text = re.sub(results.MADE, "", (ROOT / study / "RESULTS.md").read_text(), flags=re.DOTALL)
    lines = text.splitlines()
    heads = [line for line, after in pairwise(lines) if line.startswith("|") and after.startswith("|--")]
    assert set(heads) <= WORDS
