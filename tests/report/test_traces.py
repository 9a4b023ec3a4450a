"""Traces of senders: reading them, finding pauses and waits, and drawing them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.report.records import make
from tests.report.test_page import charts, read
from thalweg.cli import app
from thalweg.errors import RecordError
from thalweg.report import report, traces
from thalweg.report.traces import chart, points, read_traces, stretches

Fields = dict[str, Any]


def line(at: float, waits: str | None = "pace", **fields: Any) -> Fields:
    """Return a line of a sender that carries 1 MB/s and loses a fifth, 10 s after the machine's clock began."""
    believed = {"link": "7-0", "peer": "10.0.0.2:40", "time": 10 + at, "at": at, "rtt": 0.05, "rtt_latest": 0.06,
                "rtt_min": 0.04, "jitter_allowance": 0.01, "delivery_rate": 1e6, "pacing_rate": None, "window": 2**20,
                "in_flight": 2**19, "delivered": 8e5 * at, "lost": 2e5 * at, "path_loss": 0.2}  # fmt: skip
    return {**believed, **({} if waits is None else {"waits": waits}), **fields}


def write(path: Path, lines: Sequence[Fields], rest: str = "") -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in lines) + rest)
    return path


def test_links_are_told_apart_and_the_longest_comes_first(tmp_path: Path) -> None:
    lines = [line(at / 10, link=link, delivered=of * at) for at in range(4) for link, of in (("7-0", 1), ("8-0", 5))]
    trace = read_traces(write(tmp_path / "t.jsonl", lines, rest='{"peer": "cut'))
    assert [(one.link, one.peer, len(one.lines)) for one in trace] == [
        ("8-0", "10.0.0.2:40", 4),
        ("7-0", "10.0.0.2:40", 4),
    ]
    assert trace[0].numbers().delivered == 15


def test_numbers_say_what_it_waited_for_and_leave_out_pauses(tmp_path: Path) -> None:
    lines = [
        line(0.0), line(0.3, "window", rtt_latest=0.09), line(0.4, "idle", rtt_latest=None),
        # First a pause in which there is nothing to send, then a wait for an ACK of one second, which is no pause.
        line(5.0, "window", rtt_min=0.03), line(6.0, "idle"),
    ]  # fmt: skip
    (trace,) = read_traces(write(tmp_path / "t.jsonl", lines))
    assert [len(stretch) for stretch in stretches(trace.lines)] == [3, 2]
    numbers = trace.numbers()
    assert numbers.waits == {"pace": pytest.approx(0.3 / 1.4), "window": pytest.approx(1.1 / 1.4)}
    assert (numbers.rtt_min, numbers.rtt_median, numbers.rtt_max) == (0.03, 0.06, 0.09)
    assert numbers.lines == 5
    assert numbers.seconds == pytest.approx(6)
    assert [point is None for point in points(trace.lines)] == [False, False, False, True, False, False]


def test_points_have_the_longest_rtt_and_the_share_that_was_lost(tmp_path: Path) -> None:
    lines = [line(at / 100, rtt_latest=0.5 if at == 33 else 0.06) for at in range(101)]
    (trace,) = read_traces(write(tmp_path / "t.jsonl", lines))
    drawn = [point for point in points(trace.lines, 10) if point is not None]
    assert len(drawn) == 10
    assert [point.values["rtt_latest"] for point in drawn].count(0.5) == 1
    for point in drawn:
        assert point.values["arrived_rate"] == pytest.approx(8e5)
        assert point.values["lost_share"] == pytest.approx(0.2)
        assert point.values["rtt_allowed"] == pytest.approx(0.05)


def test_a_chart_has_a_row_for_each_thing_that_is_known(tmp_path: Path) -> None:
    (full,) = read_traces(write(tmp_path / "full.jsonl", [line(at / 10) for at in range(9)]))
    made = chart(full, since=10.0)
    groups = list(dict.fromkeys(trace["legendgroup"] for trace in made.traces))
    assert groups == ["RTT (ms)", "rate (Mbit/s)", "bytes (MiB)", "loss (%)", "waits (% of time)"]
    assert {trace["name"] for trace in made.traces if trace["legendgroup"] == "rate (Mbit/s)"} == {
        "believed",
        "arrived",
    }
    (smoothed,) = (trace for trace in made.traces if trace["name"] == "smoothed")
    assert smoothed["y"] == [50.0] * 9
    assert smoothed["x"][0] == pytest.approx(0.1)
    # A line in the form in which a masking receiver writes it.
    bare = {"peer": "10.0.0.2:40", "time": 1.0, "window": 5, "delivered": 3, "lost": 1}
    (some,) = read_traces(write(tmp_path / "bare.jsonl", [bare, {**bare, "time": 1.5, "delivered": 9}]))
    groups = list(dict.fromkeys(trace["legendgroup"] for trace in chart(some, since=1.0).traces))
    assert groups == ["rate (Mbit/s)", "bytes (MiB)", "loss (%)"]


def test_long_traces_are_thinned_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MOST_LINES", 50)
    (trace,) = read_traces(write(tmp_path / "t.jsonl", [line(at / 100) for at in range(150)]))
    assert (trace.stride, len(trace.lines), trace.numbers().lines) == (4, 38, 150)
    assert chart(trace, since=10.0).notes == ["10.0.0.2:40: each 4. line is drawn"]


@pytest.mark.parametrize(
    "text",
    ["", "nothing\n", "[1]\n", '{"peer": "a"}\n', '{"peer": "a", "time": 1, "waits": "tea"}\n',
     '{"peer": "a", "time": 1, "waits": []}\n', '{"peer": 7, "time": 1}\n', f"{'[' * 100_000}\n"],
)  # fmt: skip
def test_what_is_no_trace_is_refused_with_the_hint(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(RecordError, match=r"t\.jsonl") as refused:
        read_traces(tmp_path / "t.jsonl")
    assert "--option trace=FILE" in str(refused.value)


def test_numbers_that_json_does_not_have_are_left_out(tmp_path: Path) -> None:
    odd = write(tmp_path / "t.jsonl", [line(0, rtt=float("nan"), window=float("inf"), delivered=10**400, lost=True)])
    (trace,) = read_traces(odd)
    assert [trace.lines[0].values[name] for name in ("rtt", "window", "delivered", "lost")] == [None] * 4


def test_too_many_links_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MOST_LINKS", 2)
    lines = [line(0, link=f"7-{number}") for number in range(3)]
    with pytest.raises(RecordError, match="more than 2 links"):
        read_traces(write(tmp_path / "t.jsonl", lines))


def test_a_page_of_a_trace_alone_and_with_a_record(tmp_path: Path) -> None:
    evil = "</script><b>%{x}"
    trace = write(tmp_path / "t.jsonl", [line(at / 10, peer=evil) for at in range(9)])
    alone = report([trace, trace], tmp_path / "alone.html", tmp_path / "figures")
    assert (alone.runs, alone.figures, len(alone.traces)) == ([], [], 1)
    page = read(tmp_path / "alone.html")
    assert set(charts(page)) == {"trace"}
    assert not [tag for tag, _ in page.tags if tag == "b"]
    assert any("pace 100 %" in cell for cell in page.cells)
    both = report([make(tmp_path / "run"), trace], tmp_path / "both.html")
    assert (len(both.runs), len(both.traces)) == (1, 1)
    assert {"trace", "communication-rounds"} <= set(charts(read(tmp_path / "both.html")))


def test_the_command_takes_a_trace(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", [line(at / 10) for at in range(9)])
    done = CliRunner().invoke(app, ["report", str(trace), "--out", str(tmp_path / "r.html"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["traces"][0]["peer"] == "10.0.0.2:40"
