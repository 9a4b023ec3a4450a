"""Jobs through RabbitMQ: with a node of their own, or one that is given."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.e2e.conftest import Start
from thalweg.brokers import Broker, Place
from thalweg.brokers.rabbitmq import RabbitMq
from thalweg.record import Record

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(RabbitMq().find() is None, reason="rabbitmq-server is not installed: make system"),
]

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(RabbitMq(), Place()) as running:
        yield running


def given(broker: Broker, folder: Path) -> list[str]:
    """Return how a run is told of a broker that is not its own."""
    path = folder / "login"
    broker.login.write(path)
    return ["--transport", f"{broker.url('amqp')}/job-{os.getpid()}", "--login-file", str(path)]


def test_a_run_has_a_broker_of_its_own_and_the_record_names_it(result: Run, tmp_path: Path) -> None:
    done = result("run", "--model", "payload:1MiB", "--clients", "2", "--rounds", "2", "--transport", "amqp")
    assert [entry["complete"] for entry in done["rounds"]] == [True, True]
    # Once from the server, and the broker sends it to each.
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
    done = result("run", "--model", "payload:1MiB", "--clients", "2", "--rounds", "1", *given(broker, tmp_path))
    assert done["rounds"][0]["complete"]
    record = Record(tmp_path / done["record"])
    assert "broker" not in record.manifest
    files = [path for path in record.path.rglob("*") if path.is_file()]
    assert not [path for path in files if broker.login.password.encode() in path.read_bytes()]
    assert Path(f"/proc/{broker.pid}").exists()


def test_a_refused_login_ends_the_run_with_the_mend(start: Start, broker: Broker, tmp_path: Path) -> None:
    arguments = given(broker, tmp_path)
    (tmp_path / "login").write_text("guest:guest\n")
    code, _, err = start("run", "--model", "payload:64KiB", *arguments).end()
    assert code == 1
    assert "ACCESS_REFUSED" in err
    assert "security.login_file" in err


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
    program = start("run", str(plan), "--json", *given(broker, tmp_path))
    program.until("round 1/4")
    os.kill(broker.pid, signal.SIGKILL)
    code, out, err = program.end()
    assert code == 0, err
    rounds = json.loads(out)["rounds"]
    assert [entry["complete"] for entry in rounds] == [True] * 4
    events = [event["what"] for event in broker.events]
    assert [event for event in events if "was killed by signal 9" in event]
    assert [event for event in events if "was started again" in event]
