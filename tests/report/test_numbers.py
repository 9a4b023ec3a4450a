"""The numbers of a report are derived from the record alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.report.records import make, write
from thalweg.record.tables import read_table
from thalweg.report import read_runs
from thalweg.report.numbers import numbers
from thalweg.report.source import read_run
from thalweg.report.values import Spread
from thalweg.wire import table_of


def test_of_a_run(wifi: Path) -> None:
    run_numbers = numbers(read_run(wifi))
    assert run_numbers.network == "wifi"
    assert run_numbers.transport == "tcp"
    assert run_numbers.emulation == "packet level"
    assert (run_numbers.rounds, run_numbers.rounds_planned, run_numbers.clients) == (4, 4, 2)
    assert run_numbers.accuracy == run_numbers.best_accuracy == 1 - 0.5 / 4
    assert run_numbers.communication_seconds is not None
    assert table_of(run_numbers.communication_seconds) == pytest.approx(
        {"count": 4, "min": 0.2, "median": 0.5, "max": 0.8}
    )
    # 2 MB over a link of 80 Mbit/s take 0.2 s. Rounds move 4 MB in 0.2 s to 0.8 s.
    assert run_numbers.bound_seconds is not None
    assert run_numbers.share_of_bound is not None
    assert run_numbers.goodput_bits_per_second is not None
    assert run_numbers.bound_seconds.median == pytest.approx(0.2)
    assert run_numbers.share_of_bound.max == pytest.approx(1.0)
    assert run_numbers.share_of_bound.min == pytest.approx(0.25)
    assert run_numbers.goodput_bits_per_second.max == pytest.approx(160e6)
    assert run_numbers.retransmissions == 3 * 7, "as the hosts counted: the record has no count of the run's own"
    assert run_numbers.bytes_down == run_numbers.bytes_up == 8_000_000
    assert run_numbers.links[0].lost_share == pytest.approx(0.01)
    assert run_numbers.links[0].nominal["delay"] == 0.02
    assert run_numbers.parties[1].stress is not None
    assert run_numbers.parties[1].stress["operations_per_second"] == 12.5


def test_of_rounds(wifi: Path) -> None:
    each = numbers(read_run(wifi)).each_round
    assert [row.elapsed_seconds for row in each] == pytest.approx([1.2, 2.6, 4.2, 6.0])
    assert [row.bound_elapsed_seconds for row in each] == pytest.approx([1.2, 2.4, 3.6, 4.8])


def test_what_is_not_known_is_null(bare: Path) -> None:
    run_numbers = numbers(read_run(bare))
    assert run_numbers.accuracy is None
    assert run_numbers.bound_seconds is None
    assert run_numbers.share_of_bound is None
    assert run_numbers.links == []
    assert [(one.row.party, one.row.peak_rss_bytes) for one in run_numbers.parties] == [
        ("client-1", 50_000_000),
        ("client-2", 50_000_000),
    ]
    assert run_numbers.network == "loopback"


def resent(path: Path, **facts: object) -> int | None:
    """Return a report's number of retransmissions, with these facts in the manifest."""
    manifest = path / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **facts}))
    run_numbers: int | None = numbers(read_run(path)).retransmissions
    return run_numbers


def test_a_sum_over_transfers_is_no_total(tmp_path: Path) -> None:
    path = make(tmp_path / "r", lab=False)
    assert resent(path, resent={"first": 1, "down": 100, "up": 30}) == 130
    for unknown in (
        None,
        {"first": 1, "down": 100, "up": None},
        {"first": 1, "down": None, "up": None},
        {"first": 3, "down": 100, "up": 30},
    ):
        assert resent(path, resent=unknown) is None, unknown


def test_emulated_hosts_count_where_the_senders_did_not(tmp_path: Path) -> None:
    path = make(tmp_path / "r")
    unknown = {"first": 1, "down": 100, "up": None}
    assert resent(path, resent=unknown) == 3 * 7
    assert resent(path, resent={**unknown, "first": 3}) is None, "the hosts are those of the last part"
    assert resent(path, resent=unknown, resumed_after_round=2) is None
    assert resent(path, resent=unknown, resumed_after_round=None, status="interrupted") is None


def test_hosts_do_not_count_what_is_not_tcp(tmp_path: Path) -> None:
    chunks = {"transport": {"url": "ltp"}}
    path = make(tmp_path / "r", plan=chunks)
    assert resent(path, resent={"first": 1, "down": 100, "up": None}) is None
    assert resent(path, resent={"first": 1, "down": 100, "up": 30}) == 130


@pytest.mark.parametrize(("party", "counted"), [("broker", None), ("server", 3 * 7)])
def test_what_a_broker_sent_again_only_its_host_counts(tmp_path: Path, party: str, counted: int | None) -> None:
    """A broker without a host of its own runs on the server's host, whose count includes it."""
    path = make(tmp_path / "r", plan={"transport": {"url": "mqtt"}})
    rows = read_table(path, "parties")
    write(path, "parties", [*rows, {**rows[0], "party": "broker", "retransmitted_segments": None}])
    counts = {"first": 1, "down": 100, "up": 30, "broker": None}
    assert resent(path, resent=counts, broker={"party": party}) == counted
    assert resent(path, resent=counts, broker={"party": party}, emulation="none") is None


@pytest.mark.parametrize(
    ("layers", "network"),
    [
        ({"throttle": 60_000_000}, "60 Mbit/s a link"),
        (
            {"throttle": 60_000_000, "fault": {"loss": 0.01, "delay_ms": 2.0}},
            "60 Mbit/s a link, loss 1 %, delay 2 ms",
        ),
    ],
)
def test_message_level_networks(tmp_path: Path, layers: dict[str, object], network: str) -> None:
    manifest = {"emulation": "message level: {}"}
    run = read_run(make(tmp_path / "r", lab=False, plan={"layers": layers}, manifest=manifest))
    assert numbers(run).network == network
    assert "message level" in run.why_no_links()


def test_an_emulated_network_is_called_by_what_it_was_set_to(tmp_path: Path) -> None:
    keys = {"rate": "200mbit", "rtt": ["20ms", "40ms"], "up": {"loss": "1%"}, "changes": [{"at": 5, "rate": "5mbit"}]}
    path = make(tmp_path / "r", plan={"network": keys}, manifest={"network": {"profile": None, "topology": "star"}})
    run_numbers = numbers(read_run(path))
    assert run_numbers.network == "rate 200 Mbit/s, rtt 20 ms to 40 ms, up (loss 1 %), changes"


def test_the_bound_of_an_emulated_network_is_of_whole_updates(tmp_path: Path) -> None:
    bound = {"source": "the links", "round_seconds": 0.15, "round_bytes": 4_000_000}
    run_numbers = numbers(read_run(make(tmp_path / "a", manifest={"bound": bound})))
    assert run_numbers.bound_seconds == Spread(4, 0.15, 0.15, 0.15)
    bound["round_bytes"] = 5
    assert numbers(read_run(make(tmp_path / "b", manifest={"bound": bound}))).bound_seconds is None


def test_a_fallback_is_named(tmp_path: Path) -> None:
    network = {"profile": None, "topology": "dumbbell", "reason": "no permission to make namespaces"}
    run_numbers = numbers(read_run(make(tmp_path / "r", manifest={"network": network})))
    assert run_numbers.network == "own values, dumbbell"
    assert run_numbers.emulation_reason == "no permission to make namespaces"


def test_names_tell_runs_apart(tmp_path: Path) -> None:
    cubic = {"transport": {"congestion": "cubic"}}
    paths = [make(tmp_path / "x-1"), make(tmp_path / "x-2"), make(tmp_path / "x-3", plan=cubic)]
    assert [run.label for run in read_runs(paths)] == ["tcp 1", "tcp 2", "tcp cubic"]
    assert [run.label for run in read_runs(paths[:1])] == ["x-1"]
    keys = {"rate": "20mbit", "rtt": "40ms", "loss": "1%", "jitter": "5ms", "queue": "256KiB"}
    slow = make(tmp_path / "x-4", plan={"network": keys}, manifest={"network": {"profile": None, "topology": "star"}})
    long = read_runs([paths[0], slow])[1].label
    assert long == "rate 20 Mbit/s, jitter 5 ms, loss 1 %, queue 256 KiB, rtt 40 ms"
    same = [make(tmp_path / "a" / "same"), make(tmp_path / "b" / "same")]
    assert [run.label for run in read_runs(same)] == ["same 1", "same 2"]


@pytest.mark.parametrize("manifest", [{"bound": []}, {"machine": [], "thalweg": 3, "network": "wifi", "kernel": None}])
def test_an_odd_manifest_is_borne(tmp_path: Path, manifest: dict[str, object]) -> None:
    assert numbers(read_run(make(tmp_path / "r", manifest=manifest))).rounds == 4
