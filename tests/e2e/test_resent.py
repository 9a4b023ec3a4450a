"""What is sent again over an emulated network: the job's own count beside the kernels' of its hosts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import why_no_lab
from thalweg.record import Record
from thalweg.record.tables import read_table
from thalweg.report.numbers import numbers
from thalweg.report.source import read_run

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")]


@pytest.mark.parametrize(("transport", "clients"), [("tcp", 1), ("tcp", 2), ("grpc", 1), ("zmq", 1)])
def test_what_is_sent_again_is_what_the_hosts_sent_again(
    result: Callable[..., Any], tmp_path: Path, transport: str, clients: int
) -> None:
    network = "rate=100mbit,rtt=20ms,loss=2%"
    options = ("--transport", transport, "--clients", str(clients), "--rounds", "3", "--network", network)
    done = result("run", "--model", "payload:1MiB", "--emulator", "packet", *options)
    folder = tmp_path / done["record"]
    resent = Record(folder).manifest["resent"]
    hosts = {row["party"]: row["retransmitted_segments"] for row in read_table(folder, "parties")}
    # The hosts count the ends of connections too: a segment or two for each.
    slack = 2 * clients + 1
    assert resent["down"] + resent["up"] > 0, "2 % of more than 4,000 packets were lost"
    assert 0 <= hosts["server"] - resent["down"] <= slack, (resent, hosts)
    assert 0 <= sum(hosts.values()) - hosts["server"] - resent["up"] <= slack, (resent, hosts)
    assert numbers(read_run(folder))["retransmissions"] == resent["down"] + resent["up"]
    # A client tells of its first update when the next one is under way.
    transfers = [row["retransmissions"] or 0 for row in read_table(folder, "transfers")]
    assert sum(transfers) <= resent["down"] + resent["up"], "transfers lack what was counted last"
    assert sum(transfers) > 0
