"""The numbers of runs and cells, from records in which every number is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.cells import Fake, Quiet, bench
from tests.report.records import UPDATE, make, party, write
from thalweg.bench import BenchPlan, Matrix
from thalweg.bench.estimate import Estimate
from thalweg.bench.measure import measure
from thalweg.bench.results import figures
from thalweg.bench.show import duration, runs, tables
from thalweg.bench.values import ByKind, Outcome, RoundTimes, RunNumbers
from thalweg.plan import Plan
from thalweg.plan.least import least_seconds
from thalweg.ui import terminal
from thalweg.wire import table_of


def test_the_numbers_of_a_run(tmp_path: Path) -> None:
    measured = measure(make(tmp_path / "a", rounds=2))
    assert [row.communication_seconds for row in measured.rounds] == pytest.approx([0.2, 0.4])
    assert [row.seconds for row in measured.rounds] == pytest.approx([1.2, 1.4])
    assert [row.fedcomm_communication_seconds for row in measured.rounds] == pytest.approx([0.11, 0.22])
    # Each round has two clients and two directions. Each client's link carried 15 MB each way, headers included.
    assert measured.update_bytes == 2 * 4 * UPDATE
    assert (measured.wire_bytes, measured.wire_counted) == (4 * 15_000_000, "ip")
    assert measured.wire_ratio == pytest.approx(60 / 8)
    assert measured.retransmissions == 3 * 7, "as its hosts counted"
    assert measured.cpu_seconds == ByKind(1.25, 2.5, None)
    assert measured.peak_rss_bytes == ByKind(100 << 20, 100 << 20, None)
    assert measured.accuracy == 0.75


def test_without_a_lab_the_transport_counts(tmp_path: Path) -> None:
    measured = measure(make(tmp_path / "a", rounds=2, lab=False))
    assert (measured.wire_bytes, measured.wire_counted) == (2 * 4 * UPDATE, "transport")
    assert measured.cpu_seconds == ByKind()


def test_a_broker_is_neither_server_nor_client(tmp_path: Path) -> None:
    folder = make(tmp_path / "a")
    write(folder, "parties", [party(name) for name in ("server", "client-1", "client-2", "broker")])
    assert measure(folder).cpu_seconds == ByKind(1.25, 2.5, 1.25)


def test_the_figures_of_a_cell(tmp_path: Path) -> None:
    results = bench(tmp_path).run(Quiet(), execute=Fake())
    for row in results.cells:
        assert (row.repetitions, row.rounds, row.incomplete_rounds) == (2, 4, 0)
        assert row.communication_seconds is not None
        assert table_of(row.communication_seconds) == pytest.approx({"count": 4, "min": 0.2, "median": 0.3, "max": 0.4})
        assert row.communication_seconds_by_run == pytest.approx([0.3, 0.3])
        assert row.bound_seconds == pytest.approx(2 * UPDATE * 8 / 80e6)
        assert row.share_of_bound == pytest.approx((1 + 0.5) / 2)
        assert row.wire_ratio == pytest.approx(7.5)
        assert row.seconds_a_run is not None
        assert row.seconds_a_run >= 0


def test_fedcomms_time_has_no_share_of_a_bound_of_both_ways() -> None:
    # FedComm's time begins after the model was sent, so it can be less than the bound of a whole round.
    run = RunNumbers(rounds=[RoundTimes(1, 2.0, 1.1, 0.5, 1.0, complete=True, accuracy=None)])
    outcome = Outcome(
        cell=1, repetition=1, settings={}, status="complete", reason=None, numbers=run, started="", seconds=2.0,
        record=None,
    )  # fmt: skip
    row = table_of(figures(1, {}, "complete", [], [outcome]))
    assert {key: value for key, value in row.items() if "share" in key} == {"share_of_bound": pytest.approx(1 / 1.1)}


def test_the_tables_show_every_cell(tmp_path: Path) -> None:
    results = bench(tmp_path, matrix={"transport": ["tcp", "memory"], "network": ["none", "wifi"]}, impossible="skip")
    done = results.run(Quiet(), execute=Fake(fail=(("memory", 0), ("memory", 1))))
    console = terminal.console()
    with console.capture() as caught:
        for table in tables(done.cells, list(done.axes), done.accounting):
            console.print(table)
    text = caught.get()
    assert "300 ms (200 to 400)" in text
    assert "1.30 s" in text
    for word in ("tcp, wifi", "skipped", "failed", "7.500", "2.50 s", "100.0 MiB", "mean computation"):
        assert word in text, word
    assert "others" not in text, "a column of nothing"


def test_the_least_a_job_needs() -> None:
    slow = {"job": {"clients": 2, "rounds": 3}, "model": {"name": "payload:1MB"}}
    assert least_seconds(Plan.of(slow)) == 0
    assert least_seconds(Plan.of({**slow, "layers": {"throttle": "8mbit"}})) == pytest.approx(3 * 2 * 1.0)
    emulated = Plan.of({**slow, "network": {"rate": "8mbit", "rtt": "100ms"}})
    assert 3 * 2.1 < least_seconds(emulated) < 3 * 2.3, "headers come on top"
    assert least_seconds(emulated.merge({"network.emulator": "none"})) == 0


def test_a_job_on_a_graph_has_no_bound_and_can_be_benched() -> None:
    text = "[job]\ngraph = 'ring'\nrounds = 3\n[model]\nname = 'payload:1MiB'\n[training]\ncompute = 0.5\n"
    assert least_seconds(Plan.loads(text + "[network]\nrate = '8mbit'")) == pytest.approx(1.5)


def test_estimates_follow_what_was_measured() -> None:
    plan = {"job": {"clients": 1, "rounds": 1}, "model": {"name": "payload:1MB"}}
    made = Matrix.of(BenchPlan.of({"base": plan, "matrix": {"layers.throttle": ["8mbit", "4mbit", "80mbit"]}}))
    estimate = Estimate(made.cells)
    before = estimate.is_measured
    assert estimate.left({1: 1, 2: 2}) == pytest.approx(2 + 2 * 4)
    estimate.took(1, 3.0)
    estimate.took(1, 4.0)
    assert (before, estimate.is_measured) == (False, True)
    assert estimate.cell(1) == 3.5
    assert estimate.cell(2) == pytest.approx(4 + 1.5), "its links' least, and what the other took beyond its own"
    estimate.took(2, 4.5)
    assert estimate.cell(3) == pytest.approx(0.2 + 1.0)


def test_runs_in_words() -> None:
    assert runs(3, 0, 0) == "3"
    assert runs(3, 1, 4) == "3, 1 failed, 4 rounds short"


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (90, "90 s"), (600, "10 min"), (9000, "2.5 h")])
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words
