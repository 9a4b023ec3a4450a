"""Goodput, fairness and ceiling, from generated transfers, links and records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments import goodput, measured
from tests.report import records
from thalweg.bench.values import Outcome
from thalweg.record.rows import Link, Transfer
from thalweg.report.source import read_run


def way(client: str, begin: float, end: float, **more: Any) -> Transfer:
    times = {"receive_start": begin, "receive_end": end}
    known = {"round": 1, "client": client, "direction": "up", "bytes": 1_000_000, "missing": 0, **times, **more}
    return Transfer(**known)


def link(name: str, source: str, target: str, **nominal: Any) -> Link:
    return Link(link=name, direction="ab", source=source, target=target, nominal=json.dumps(nominal))


def test_an_update_counts_from_its_first_byte_to_its_last() -> None:
    (flow,) = goodput.flows([way("client-1", 2.0, 4.0, missing=5000)])[1]
    assert (flow.rate, flow.missing) == (4e6, 5000)


@pytest.mark.parametrize(
    "row",
    [
        way("client-1", 2.0, 4.0, direction="down"),
        way("client-1", 2.0, 2.0),
        way("client-1", 2.0, 4.0, bytes=0),
        way("client-1", 2.0, 4.0, receive_end=None),
    ],
)
def test_what_has_no_rate_is_left_out(row: Transfer) -> None:
    assert goodput.flows([row]) == {}


def test_a_round_takes_as_long_as_its_slowest_client() -> None:
    flows = goodput.flows([way("client-1", 1.0, 2.0), way("client-2", 1.5, 5.0)])[1]
    assert goodput.together(flows) == 8 * 2_000_000 / 4.0


@pytest.mark.parametrize(("rates", "index"), [([5.0, 5.0, 5.0, 5.0], 1.0), ([1.0, 0.0], 0.5), ([3.0, 1.0], 0.8)])
def test_jains_index(rates: list[float], index: float) -> None:
    assert goodput.jain(rates) == pytest.approx(index)


def test_the_slowest_link_of_its_own_or_the_shared_one_is_the_ceiling() -> None:
    own = [link(name, name, "server", rate=rate, loss=0.5) for name, rate in (("client-1", 30e6), ("client-2", 90e6))]
    part = 1448 / 1500
    # Packets that are lost in front of the limit use none of its rate. Those that are lost behind the sender's own
    # device do.
    assert goodput.ceiling_of(own, 2) == pytest.approx(2 * 30e6 * part)
    assert goodput.ceiling_of(own, 2, at_device=True) == pytest.approx(2 * 30e6 * part / 2)
    shared = link("bottleneck", "switch", "server", rate=10e6, loss=0.0)
    assert goodput.ceiling_of([*own, shared], 2) == pytest.approx(10e6 * part)
    lossy = link("bottleneck", "switch", "server", rate=None, loss=0.1)
    assert goodput.ceiling_of([*own, lossy], 2) == pytest.approx(2 * 30e6 * part * 0.9)
    assert goodput.ceiling_of([link("client-1", "client-1", "server", rate=None)], 1) is None


def test_links_of_clients_that_were_not_chosen_limit_nothing() -> None:
    links = [link(name, name, "server", rate=rate) for name, rate in (("client-1", 30e6), ("client-2", 90e6))]
    shared = link("bottleneck", "switch", "server", rate=80e6)
    assert goodput.used([*links, shared], {"client-2"}) == [links[1], shared]
    assert goodput.used(links, ["client-1", "client-2"]) == links


def test_a_record_has_all_numbers(tmp_path: Path) -> None:
    cell_numbers = goodput.of_run(read_run(records.make(tmp_path / "run", rounds=1)))
    # Both clients' updates of 1 MB arrive at the same time, from 0.01 s to 0.1 s after they were sent.
    each = records.UPDATE * 8 / 0.09
    assert cell_numbers["clients"] == 2
    assert cell_numbers["goodput"] == measured.rounded(2 * each)
    assert cell_numbers["slowest"] == measured.rounded(each)
    assert cell_numbers["flows"] == {name: measured.rounded(each) for name in ("client-1", "client-2")}
    assert (cell_numbers["jain"], cell_numbers["missing"]) == (1.0, 0.0)
    assert cell_numbers["ceiling"] == pytest.approx(2 * 60e6 * 1448 / 1500)
    assert cell_numbers["lost"] == pytest.approx(1 - 14_775_000 / 15_000_000)
    assert cell_numbers["queue_drops"] == 100
    assert cell_numbers["queue_seconds_max"] == pytest.approx(200_000 * 8 / 60e6)


def outcome(status: str, cell: int, record: str | None) -> Outcome:
    return Outcome(
        cell=cell, repetition=1, settings={}, status=status, reason=None, numbers=None, started="", seconds=1.0,
        record=record,
    )  # fmt: skip


def test_cells_have_the_median_of_their_runs(tmp_path: Path) -> None:
    runs = []
    for number in (1, 2, 3):
        records.make(tmp_path / f"run-{number}", rounds=number)
        runs.append(outcome("complete", 7, f"run-{number}"))
    runs.append(outcome("failed", 8, None))
    cell_numbers = goodput.by_cell(runs, tmp_path)
    assert list(cell_numbers) == [7]
    assert cell_numbers[7]["goodput_by_run"][1] == cell_numbers[7]["goodput"]
    assert len(cell_numbers[7]["share_by_run"]) == 3
