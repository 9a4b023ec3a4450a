"""The page: its numbers are the record's, text of others is escaped, and missing parts are explained."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import plotly.graph_objects
import pytest
from typer.testing import CliRunner

from tests.report.records import make
from thalweg.cli import app
from thalweg.errors import RecordError
from thalweg.report import report
from thalweg.report.charts import accuracy_rounds
from thalweg.report.document import MOST_RUNS
from thalweg.report.numbers import numbers
from thalweg.report.source import read_run
from thalweg.ui import strict_json

EVIL = '</script><img src="http://127.0.0.1:9/x" onerror="alert(1)"><b>%{x} $y$'


class Reader(HTMLParser):
    """Collects elements, the text of cells, and the contents of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.cells: list[str] = []
        self._place: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._place = (dict(attrs).get("id") or f"script-{len(self.scripts)}") if tag == "script" else None
        if tag in ("td", "th", "li"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self._place is not None:
            self.scripts[self._place] = self.scripts.get(self._place, "") + data
        elif self.cells:
            self.cells[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._place = None


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text())
    return reader


def unpacked(script: str) -> str:
    """Return what the page's script unpacks."""
    return gzip.decompress(base64.b64decode(script)).decode()


def charts(reader: Reader) -> dict[str, dict[str, Any]]:
    printed: list[dict[str, Any]] = json.loads(unpacked(reader.scripts["charts"]))
    return {chart["name"]: chart for chart in printed}


def test_the_numbers_on_the_page_are_the_record_s(wifi: Path, tmp_path: Path) -> None:
    made = report([wifi], tmp_path / "r.html")
    reader = read(tmp_path / "r.html")
    assert json.loads(reader.scripts["numbers"]) == json.loads(strict_json.dumps(made.runs))
    drawn = charts(reader)
    entries = [json.loads(line) for line in (wifi / "journal.jsonl").read_text().splitlines()]
    accuracy = drawn["accuracy-rounds"]["traces"][0]
    assert (accuracy["x"], accuracy["y"]) == ([1, 2, 3, 4], [100 * entry["accuracy"] for entry in entries])
    parts = {trace["name"]: trace["y"] for trace in drawn["split"]["traces"]}
    assert parts["training"] == pytest.approx([1.0] * 4)
    assert parts["communication"] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    for number, entry in enumerate(entries):
        assert sum(part[number] for part in parts.values()) == pytest.approx(entry["seconds"])
    assert [trace["name"] for trace in drawn["timeline"]["traces"]] == ["down", "training", "up"]
    assert len(drawn["links"]["traces"]) == 2 * 4 + 1
    for text in ("87.50 %", "500.0 ms (200.0 ms to 800.0 ms)", "60.0 Mbit/s", "A processor", "100 (1.00 %)"):
        assert any(text in cell for cell in reader.cells), text


def test_a_comparison_draws_medians_with_their_spread(wifi: Path, tmp_path: Path) -> None:
    other = make(tmp_path / "other", plan={"transport": {"congestion": "cubic"}})
    report([wifi, other], tmp_path / "r.html")
    drawn = charts(read(tmp_path / "r.html"))
    bars = [trace for trace in drawn["communication-time"]["traces"] if trace["type"] == "bar"]
    assert [bar["y"] for bar in bars] == [[pytest.approx(0.5)]] * 2
    assert [bar["error_y"]["array"] for bar in bars] == [[pytest.approx(0.3)]] * 2
    parts = {trace["name"]: trace["x"] for trace in drawn["round-time"]["traces"]}
    assert parts["training"] == pytest.approx([1.0, 1.0])
    assert parts["communication"] == pytest.approx([0.5, 0.5])
    assert parts["training and lower bound"] == pytest.approx([1.2, 1.2])


def test_the_lower_bound_is_a_line_in_the_plots_of_time(wifi: Path, tmp_path: Path) -> None:
    other = make(tmp_path / "other", plan={"transport": {"congestion": "cubic"}})
    report([wifi, other], tmp_path / "r.html")
    drawn = charts(read(tmp_path / "r.html"))
    for name in ("accuracy-time", "communication-rounds"):
        dotted = [trace for trace in drawn[name]["traces"] if trace["line"].get("dash") == "dot"]
        assert len(dotted) == 1, "that of both runs is the same, and drawn once"
        assert dotted[0]["name"] == "lower bound"
    assert dotted[0]["y"] == pytest.approx([0.2] * 4)
    marks = [trace for trace in drawn["communication-time"]["traces"] if trace["type"] == "scatter"]
    assert [mark["y"] for mark in marks] == [[pytest.approx(0.2)]] * 2
    assert [mark["showlegend"] for mark in marks] == [True, False]


def test_plotly_knows_all_that_the_plots_say(wifi: Path, bare: Path, tmp_path: Path) -> None:
    report([wifi, bare], tmp_path / "r.html")
    for chart in charts(read(tmp_path / "r.html")).values():
        plotly.graph_objects.Figure(data=chart["traces"], layout=chart["layout"])


def test_nothing_is_loaded_from_elsewhere(wifi: Path, tmp_path: Path) -> None:
    report([wifi], tmp_path / "r.html")
    reader = read(tmp_path / "r.html")
    named = [value for _, attributes in reader.tags for key, value in attributes.items() if key in ("src", "href")]
    assert all(value is not None and value.startswith("#") for value in named)
    assert not any(tag in ("link", "img", "iframe", "object") for tag, _ in reader.tags)
    (policy,) = (a["content"] for tag, a in reader.tags if tag == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy


def test_what_others_wrote_is_text(tmp_path: Path) -> None:
    manifest = {"kernel": EVIL, "network": {"profile": EVIL}, "bound": {"source": EVIL}, "emulation": EVIL}
    path = make(tmp_path / "r", names=[EVIL, "\x00\u202e" + "x" * 5000], manifest=manifest)
    report([path], tmp_path / "r.html", tmp_path / "figures")
    reader = read(tmp_path / "r.html")
    assert {tag for tag, _ in reader.tags} & {"img", "b"} == set()
    assert len([tag for tag, _ in reader.tags if tag == "script"]) == 4
    assert any(EVIL in cell for cell in reader.cells)
    assert json.loads(reader.scripts["numbers"])[0]["network"] == EVIL
    for chart in charts(reader).values():
        shown = re.findall(r'"(?:name|hovertext|x|y)": ?(".*?"|\[.*?\])[,}]', json.dumps(chart["traces"]))
        assert not any("<img" in text or "<b>" in text for text in shown)
    assert all(len(cell) <= 1000 for cell in reader.cells)


def test_what_is_missing_is_explained(bare: Path, tmp_path: Path) -> None:
    report([bare], tmp_path / "r.html")
    reader = read(tmp_path / "r.html")
    assert set(charts(reader)) == {"split", "communication-rounds", "timeline"}
    said = "\n".join(reader.cells)
    for text in ("payload:1MB is moved and not trained", "emulation is none", "no lower bound: not known", "failed"):
        assert text in said, text


def test_a_run_without_a_round_has_a_page(tmp_path: Path) -> None:
    path = make(tmp_path / "r", lab=False, parquet=False, manifest={"status": "interrupted"})
    (path / "journal.jsonl").unlink()
    report([path], tmp_path / "r.html", tmp_path / "figures")
    reader = read(tmp_path / "r.html")
    assert charts(reader) == {}
    assert any("the run is interrupted and has no finished round" in cell for cell in reader.cells)


def test_many_records_are_compared(tmp_path: Path) -> None:
    paths = [make(tmp_path / f"run-{number}", rounds=2) for number in range(MOST_RUNS + 2)]
    made = report(paths, tmp_path / "r.html")
    reader = read(tmp_path / "r.html")
    assert len({run.label for run in made.runs}) == MOST_RUNS + 2
    drawn = charts(reader)
    named = [trace for trace in drawn["accuracy-rounds"]["traces"] if "name" in trace]
    assert [trace["name"] for trace in named] == ["tcp"], "repetitions are one line"
    assert named[0]["customdata"] == [[1, MOST_RUNS + 2], [2, MOST_RUNS + 2]]
    assert len([trace for trace in drawn["accuracy-rounds"]["traces"] if "fillcolor" in trace]) == 2
    assert len(json.loads(unpacked(reader.scripts["charts"]))) == 5 + 2 * MOST_RUNS
    assert any("2 more runs are not drawn" in cell for cell in reader.cells)


def test_a_long_run_is_thinned_and_says_so(wifi: Path) -> None:
    run = numbers(read_run(wifi))
    rounds = [replace(run.each_round[0], round=number, accuracy=number / 10_000) for number in range(1, 10_001)]
    chart = accuracy_rounds([replace(run, each_round=rounds)])
    assert len(chart.traces[0]["x"]) == 2000
    assert (chart.traces[0]["x"][0], chart.traces[0]["x"][-1]) == (1, 10_000)
    assert chart.notes == ["tcp: 2000 of 10000 rounds are drawn"]


def test_the_page_of_the_same_records_is_the_same(wifi: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        report([wifi], tmp_path / f"{name}.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


@pytest.mark.parametrize("place", ["none/r.html", "folder"])
def test_a_place_that_cannot_be_written(wifi: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(RecordError, match="cannot write the report") as caught:
        report([wifi], tmp_path / place)
    assert "--out" in caught.value.hint
    assert not list(tmp_path.glob("*.part"))


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_the_command(wifi: Path, bare: Path, tmp_path: Path) -> None:
    out, figures = tmp_path / "r.html", tmp_path / "figures"
    done = invoke(wifi, bare, "--out", out, "--figures", figures, "--json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert set(document) == {"report", "bytes", "figures", "left_out", "verdicts", "notes", "cells", "runs", "traces"}
    assert document["bytes"] == out.stat().st_size
    assert all(Path(path).is_file() for path in document["figures"])
    assert any(name.startswith("links-2") for name in document["left_out"])
    assert [run["record"] for run in document["runs"]] == [str(wifi), str(bare)]


def test_the_command_says_what_it_wrote(bare: Path, tmp_path: Path) -> None:
    done = invoke(bare, "--out", tmp_path / "r.html", "--figures", tmp_path)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == str(tmp_path / "r.html")
    assert "left out: accuracy-rounds: payload:1MB is moved" in done.stderr


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["/none"], 1)])
def test_the_command_refuses(arguments: list[str], code: int, tmp_path: Path) -> None:
    done = invoke(*arguments, "--out", tmp_path / "r.html")
    assert done.exit_code == code
    assert not (tmp_path / "r.html").exists()


def test_the_command_names_cause_and_hint(wifi: Path, tmp_path: Path) -> None:
    (wifi / "rounds.parquet").write_text("no table")
    done = invoke(wifi, "--out", tmp_path / "r.html", "--json")
    assert done.exit_code == 1
    assert "rounds.parquet is damaged" in done.stderr.splitlines()[-2]
    assert json.loads(done.stdout)["error"]["hint"].startswith("Make it anew: thalweg export")
