"""The data of plots: they match the record, and have a bounded number of points."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.report.records import make, queues, round_entry, write
from thalweg.record.tables import rows, write_table
from thalweg.report.numbers import labels, numbers
from thalweg.report.series import MOST_LANES, MOST_SERIES, groups, links_over_time, thinned, timeline
from thalweg.report.source import Samples, read_run


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 1000])
def test_thinning_keeps_order_and_both_ends(count: int) -> None:
    kept = thinned(range(count), 10)
    assert len(kept) == min(count, 10)
    assert kept == sorted(set(kept))
    assert not count or (kept[0], kept[-1]) == (0, count - 1)


def test_the_timeline_has_each_transfer_and_the_training_between(wifi: Path) -> None:
    shown = timeline(read_run(wifi))
    assert shown.lanes == ["client-1", "client-2"]
    assert shown.note is None
    first = [bar for bar in shown.bars if bar.lane == "client-1" and bar.round == 2]
    assert [bar.kind for bar in first] == ["down", "training", "up"]
    assert [bar.start for bar in first] == pytest.approx([20.0, 20.2, 21.2])
    assert [bar.end for bar in first] == pytest.approx([20.2, 21.2, 21.4])
    assert shown.starts == pytest.approx({1: 10.0, 2: 20.0, 3: 30.0, 4: 40.0})


def test_a_payload_is_not_trained(bare: Path) -> None:
    assert {bar.kind for bar in timeline(read_run(bare)).bars} == {"down", "up"}


def test_a_transfer_that_broke_off_is_drawn_as_far_as_it_came(tmp_path: Path) -> None:
    path = make(tmp_path / "r", rounds=1)
    content = list(rows("transfers", [round_entry(1, ["client-1"], None)]))
    content[1] |= {"complete": False, "receive_end": None}
    content.append({**content[1], "direction": "up", "send_start": None, "send_end": None, "receive_start": None})
    write_table(path, "transfers", [content])
    shown = timeline(read_run(path))
    assert [bar.kind for bar in shown.bars] == ["down", "broken off"]
    assert shown.bars[1].end == pytest.approx(10.1 + 0.09)


def test_a_timeline_of_many_is_cut_and_says_so(tmp_path: Path) -> None:
    path = make(tmp_path / "r", rounds=3, names=[f"client-{number}" for number in range(1, 101)], lab=False)
    shown = timeline(read_run(path), most=2 * 3 * MOST_LANES)
    assert len(shown.bars) == 2 * 3 * MOST_LANES
    assert shown.lanes[-1] == f"client-{MOST_LANES}"
    assert shown.note == f"shown are rounds 1 to 2 of 3 and {MOST_LANES} of 100 clients"


def test_throughput_adds_up_to_what_was_carried(wifi: Path) -> None:
    run = read_run(wifi)
    shown, note = links_over_time(run)
    assert [one.name for one in shown[:2]] == ["client-1 to server", "server to client-1"]
    assert note is not None
    assert note.startswith("in bins of ")
    for one, samples in zip(shown, run.samples, strict=True):
        width = one.edges[1] - one.edges[0]
        assert sum(one.throughput) * width / 8 == pytest.approx(samples.bytes_out[-1])
        assert max(one.queue_bytes) == max(samples.queue_bytes)
        assert set(one.rate) == {60e6}


def test_between_samples_that_lie_apart_a_link_idles(tmp_path: Path) -> None:
    path = make(tmp_path / "r")
    both = [
        {**queues("client-1", 1)[0], "seconds": 10.0, "bytes_out": 1000, "queue_bytes": 0, "rate": None},
        {**queues("client-1", 1)[0], "seconds": 20.0, "bytes_out": 3000, "queue_bytes": 7, "rate": 1e6},
    ]
    write(path, "queues", both)
    (one,), _ = links_over_time(read_run(path), 10_000)
    moments = one.edges[:-1]
    assert np.count_nonzero(one.throughput) <= 4
    assert one.throughput[(moments > 10.05) & (moments < 19.9)].max() == 0
    assert one.queue_bytes[-1] == 7
    assert np.isnan(one.rate[0])
    assert one.rate[-1] == 1e6


def test_one_sample_is_enough(tmp_path: Path) -> None:
    path = make(tmp_path / "r")
    write(path, "queues", queues("client-1", 1)[:1])
    (one,), _ = links_over_time(read_run(path))
    assert len(one.throughput) >= 1
    assert np.isfinite(one.throughput).all()


def test_of_many_links_the_busiest_are_drawn(tmp_path: Path) -> None:
    run = read_run(make(tmp_path / "r", rounds=1, names=[f"client-{number}" for number in range(1, 13)]))
    idle = [Samples(**{**vars(one), "bytes_out": one.bytes_out * 0}) for one in run.samples[:8]]
    run = type(run)(**{**vars(run), "samples": [*idle, *run.samples[8:]]})
    shown, note = links_over_time(run)
    assert len(shown) == MOST_SERIES
    assert note is not None
    assert note.endswith("the 16 busiest of 24 directions of links")
    assert all(sum(one.throughput) > 0 for one in shown)


def test_rounds_of_runs_that_are_alike_are_taken_together(tmp_path: Path) -> None:
    paths = [make(tmp_path / name, rounds=rounds) for name, rounds in (("a", 2), ("b", 4))]
    other = make(tmp_path / "c", plan={"transport": {"congestion": "cubic"}})
    run_groups = groups([numbers(read_run(path)) for path in (*paths, other)])
    assert [(one.transport, one.condition, one.runs, len(one.seconds)) for one in run_groups] == [
        ("tcp", "wifi", 2, 6),
        ("tcp cubic", "wifi", 1, 4),
    ]
    assert run_groups[0].median == pytest.approx(0.4)


def test_runs_of_other_models_are_kept_apart(tmp_path: Path) -> None:
    paths = [make(tmp_path / "a"), make(tmp_path / "b", plan={"model": {"name": "vgg5"}})]
    run_groups = groups([numbers(read_run(path)) for path in paths])
    assert [one.condition for one in run_groups] == ["wifi, lenet", "wifi, vgg5"]


def test_runs_whose_losses_stay_are_kept_apart(tmp_path: Path) -> None:
    paths = [make(tmp_path / "a"), make(tmp_path / "b", plan={"repair": {"resend": False}})]
    runs = [read_run(path) for path in paths]
    assert [one.condition for one in groups([numbers(run) for run in runs])] == ["wifi", "wifi, losses not resent"]
    assert labels(runs)[1] == "losses not resent"
