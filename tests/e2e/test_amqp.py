"""Jobs through RabbitMQ: with a broker that the run starts, and with one that runs already."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.e2e.conftest import Start
from thalweg.brokers import Broker, BrokerPlace
from thalweg.brokers.rabbitmq import RabbitMq
from thalweg.record import Record

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(RabbitMq().find() is None, reason="rabbitmq-server is not installed: make system"),
]

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(RabbitMq(), BrokerPlace()) as running:
        yield running


def options_of(broker: Broker, folder: Path) -> list[str]:
    """Return the options of a run that uses a broker which it does not start."""
    path = folder / "login"
    broker.login.write(path)
    return ["--transport", f"{broker.url('amqp')}/job-{os.getpid()}", "--login-file", str(path)]


def test_a_run_has_a_broker_of_its_own_and_the_record_names_it(result: Run, tmp_path: Path) -> None:
    done = result("run", "--model", "payload:1MiB", "--clients", "2", "--rounds", "2", "--transport", "amqp")
    assert [entry["complete"] for entry in done["rounds"]] == [True, True]
    # The server sends the model once, and the broker sends it to each client.
    assert (1 << 20) <= done["rounds"][1]["bytes_down"] < 2 << 20
    record = Record(tmp_path / done["record"])
    known = record.manifest["broker"]
    assert (known["program"], known["encrypted"], known["events"]) == ("rabbitmq-server", False, [])
    rows = {row["party"]: row for row in pq.read_table(record.path / "parties.parquet").to_pylist()}
    assert set(rows) == {"server", "client-1", "client-2", "broker"}
    assert rows["broker"]["cpu_seconds"] > 0
    assert rows["broker"]["peak_rss_bytes"] > 10 << 20


def test_links_to_a_runs_own_broker_can_be_encrypted(result: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        """
        [job]
        clients = 2
        rounds = 1
        [model]
        name = "payload:1MiB"
        [transport]
        url = "amqp"
        [security]
        tls = "on"
        """
    )
    done = result("run", str(plan))
    assert done["rounds"][0]["complete"]
    assert Record(tmp_path / done["record"]).manifest["broker"]["encrypted"]


def test_a_given_broker_is_used_and_left_alone(result: Run, broker: Broker, tmp_path: Path) -> None:
    done = result("run", "--model", "payload:1MiB", "--clients", "2", "--rounds", "1", *options_of(broker, tmp_path))
    assert done["rounds"][0]["complete"]
    record = Record(tmp_path / done["record"])
    assert "broker" not in record.manifest
    files = [path for path in record.path.rglob("*") if path.is_file()]
    assert not [path for path in files if broker.login.password.encode() in path.read_bytes()]
    assert Path(f"/proc/{broker.pid}").exists()


def test_a_refused_login_ends_the_run_with_the_hint(start: Start, broker: Broker, tmp_path: Path) -> None:
    arguments = options_of(broker, tmp_path)
    (tmp_path / "login").write_text("guest:guest\n")
    code, _, err = start("run", "--model", "payload:64KiB", *arguments).end()
    assert code == 1
    assert "ACCESS_REFUSED" in err
    assert "security.login_file" in err


def test_an_alarm_counts_against_nobody_and_the_record_names_it(start: Start, broker: Broker, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        """
        [job]
        clients = 2
        rounds = 50
        liveness = 2
        deadline = 12
        [model]
        name = "payload:8MiB"
        [layers]
        throttle = "100mbit"
        """
    )
    program = start("run", str(plan), *options_of(broker, tmp_path))
    program.until("round 1/50")
    try:
        evaluate(broker, "vm_memory_monitor:set_vm_memory_high_watermark({absolute, 1048576}).")
        code, _, err = program.end()
    finally:
        evaluate(broker, "vm_memory_monitor:set_vm_memory_high_watermark(0.4).")
    assert code == 1
    assert "of 2 updates came" in err, "the round ended by its deadline"
    assert "no progress" not in err
    (folder,) = (tmp_path / "runs").iterdir()
    log = (folder / "log.txt").read_text()
    assert "the broker takes no messages at the moment: low on memory" in log
    assert any("memory resource limit alarm set" in event.what for event in broker.events)


def evaluate(broker: Broker, expression: str) -> None:
    """Have the node evaluate an Erlang expression."""
    environment = Path(f"/proc/{broker.pid}/environ").read_bytes().decode(errors="replace")
    port = re.findall(r"RABBITMQ_DIST_PORT=(\d+)", environment)[0]
    cookie = (broker.folder / ".erlang.cookie").read_text()
    call = ["/usr/lib/erlang/bin/erl_call", "-address", f"localhost:{port}", "-c", cookie, "-e"]
    said = subprocess.run(call, input=f"{expression}\n", capture_output=True, text=True, check=True).stdout
    assert "{ok, ok}" in said


def test_a_broker_that_dies_in_mid_run_is_come_back_to(start: Start, broker: Broker, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        """
        [job]
        clients = 2
        rounds = 4
        grace = 110
        [model]
        name = "payload:8MiB"
        [layers]
        throttle = "100mbit"
        """
    )
    program = start("run", str(plan), "--json", *options_of(broker, tmp_path))
    program.until("round 1/4")
    os.kill(broker.pid, signal.SIGKILL)
    code, out, err = program.end()
    assert code == 0, err
    rounds = json.loads(out)["rounds"]
    assert [entry["complete"] for entry in rounds] == [True] * 4
    events = [event.what for event in broker.events]
    assert [event for event in events if "was killed by signal 9" in event]
    assert [event for event in events if "was started again" in event]
