"""Retransmissions over an emulated network: the job's count, compared with those of its hosts' kernels."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Start, why_no_lab
from thalweg.record import Record
from thalweg.record.tables import read_table
from thalweg.report.numbers import numbers
from thalweg.report.source import read_run

pytestmark = pytest.mark.e2e
LAB = pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")
NETWORK = "rate=100mbit,rtt=20ms,loss=2%"
BROKERS = [
    pytest.param("mqtt", marks=pytest.mark.skipif(shutil.which("mosquitto") is None, reason="needs mosquitto")),
    pytest.param("amqp", marks=pytest.mark.skipif(shutil.which("rabbitmq-server") is None, reason="needs rabbitmq")),
]
APP = """
import numpy as np


class App:
    def model(self):
        return {"w": np.zeros(10, np.float32)}

    def client_data(self, name, index, clients, seed):
        return index

    def train(self, model, data, config):
        model["w"] += 1
        return 1, {}
"""


@LAB
@pytest.mark.parametrize(("transport", "clients"), [("tcp", 1), ("tcp", 2), ("grpc", 1), ("zmq", 1)])
def test_the_jobs_retransmissions_equal_the_hosts_counts(
    result: Callable[..., Any], tmp_path: Path, transport: str, clients: int
) -> None:
    options = ("--transport", transport, "--clients", str(clients), "--rounds", "3", "--network", NETWORK)
    done = result("run", "--model", "payload:1MiB", "--emulator", "packet", *options)
    folder = tmp_path / done["record"]
    resent = Record(folder).manifest["resent"]
    hosts = {row["party"]: row["retransmitted_segments"] for row in read_table(folder, "parties")}
    # The hosts also count the segments that end connections: one or two for each connection.
    slack = 2 * clients + 1
    assert resent["down"] + resent["up"] > 0, "2 % of more than 4,000 packets were lost"
    assert 0 <= hosts["server"] - resent["down"] <= slack, (resent, hosts)
    assert 0 <= sum(hosts.values()) - hosts["server"] - resent["up"] <= slack, (resent, hosts)
    assert numbers(read_run(folder)).retransmissions == resent["down"] + resent["up"]
    # A client reports the count of its first update while it sends the second one.
    transfers = [row["retransmissions"] or 0 for row in read_table(folder, "transfers")]
    assert sum(transfers) <= resent["down"] + resent["up"], "transfers lack what was counted last"
    assert sum(transfers) > 0


@LAB
@pytest.mark.parametrize("transport", BROKERS)
def test_only_the_host_counts_a_brokers_retransmissions(
    result: Callable[..., Any], tmp_path: Path, transport: str
) -> None:
    options = ("--transport", transport, "--clients", "2", "--rounds", "2", "--network", NETWORK)
    done = result("run", "--model", "payload:1MiB", "--emulator", "packet", *options)
    folder = tmp_path / done["record"]
    resent = Record(folder).manifest["resent"]
    assert resent["broker"] is None
    hosts = {row["party"]: row["retransmitted_segments"] for row in read_table(folder, "parties")}
    every = sum(again for again in hosts.values() if again is not None)
    assert resent["down"] + resent["up"] < every, "the broker's own are on the way to each receiver"
    assert numbers(read_run(folder)).retransmissions == every


def test_without_emulated_hosts_a_brokers_total_is_not_known(result: Callable[..., Any], tmp_path: Path) -> None:
    if shutil.which("mosquitto") is None:
        pytest.skip("needs mosquitto")
    done = result("run", "--model", "payload:64KiB", "--transport", "mqtt", "--clients", "1", "--rounds", "1")
    folder = tmp_path / done["record"]
    resent = Record(folder).manifest["resent"]
    assert (resent["first"], resent["broker"]) == (1, None)
    assert isinstance(resent["down"], int)
    assert numbers(read_run(folder)).retransmissions is None


@LAB
@pytest.mark.parametrize("top", ["dedicated", "first-finished", "sharded"])
def test_all_links_of_a_tree_count(result: Callable[..., Any], tmp_path: Path, top: str) -> None:
    nodes = ("--aggregation", "tree", "--nodes", "2", "--placement", "worst-fit", "--top", top)
    options = ("--clients", "3", "--rounds", "2", "--emulator", "packet", "--network", NETWORK)
    done = result("run", "--model", "payload:1MiB", *nodes, *options)
    folder = tmp_path / done["record"]
    resent = Record(folder).manifest["resent"]
    hosts = {row["party"]: row["retransmitted_segments"] for row in read_table(folder, "parties")}
    total = resent["down"] + resent["up"]
    # One or two segments end each connection: those of three clients, of two nodes to the root, and between the two
    # nodes.
    assert 0 <= sum(hosts.values()) - total <= 2 * (3 + 2 + 2), (resent, hosts)
    assert total > 0
    assert numbers(read_run(folder)).retransmissions == total


def test_a_run_that_was_killed_or_resumed_has_no_total(
    start: Start, result: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP)
    run = start("run", "--app", "app.py:App", "--clients", "1", "--rounds", "100000", "--transport", "tcp")
    run.until("round 3/")
    run.process.kill()
    run.end()
    (folder,) = (tmp_path / "runs").iterdir()
    manifest = Record(folder).manifest
    assert (manifest["status"], manifest["resent"]) == ("running", None)
    assert numbers(read_run(folder)).retransmissions is None
    done = Record(folder).checkpoint_round
    assert done is not None
    result("run", "--resume", str(folder), "--rounds", str(done + 1))
    resent = Record(folder).manifest["resent"]
    assert resent["first"] == done + 1
    assert isinstance(resent["up"], int)
    assert numbers(read_run(folder)).retransmissions is None
