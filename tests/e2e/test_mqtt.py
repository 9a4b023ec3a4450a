"""Jobs through a broker that the run starts, watches and ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.e2e.conftest import Start
from thalweg.brokers.base import installed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(installed("mosquitto") is None, reason="mosquitto is not installed: make system"),
]
Run = Callable[..., Any]


def mosquittos(parent: int) -> list[int]:
    """Return the Mosquittos below a process: keepers are its children, brokers theirs."""
    parents, names = {}, {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                before, _, after = (path / "stat").read_text().rpartition(")")
            except OSError:
                continue  # it has ended meanwhile
            parents[int(path.name)] = int(after.split()[1])
            names[int(path.name)] = before.partition("(")[2]
    return [pid for pid, name in names.items() if name == "mosquitto" and parents.get(parents[pid]) == parent]


@pytest.mark.parametrize("options", [(), ("--tls", "on", "--option", "version=3.1.1", "--option", "qos=1")])
def test_a_run_has_a_broker_of_its_own(result: Run, tmp_path: Path, options: tuple[str, ...]) -> None:
    done = result("run", "--transport", "mqtt", "--model", "payload:1MiB", "--clients", "3", "--rounds", "2", *options)
    assert [(entry["participants"], entry["complete"]) for entry in done["rounds"]] == [(3, True), (3, True)]
    # The model is sent once for all clients.
    assert done["rounds"][1]["bytes_down"] < 2 << 20
    record = tmp_path / done["record"]
    rows = {row["party"]: row for row in parquet.read_table(record / "parties.parquet").to_pylist()}
    assert rows["broker"]["peak_rss_bytes"] > 1 << 20
    assert rows["broker"]["cpu_seconds"] >= 0
    broker = json.loads((record / "manifest.json").read_text())["broker"]
    assert (broker["program"], broker["party"], broker["encrypted"]) == ("mosquitto", "server", "--tls" in options)
    words = "".join(path.read_text() for path in record.iterdir() if path.suffix in (".json", ".toml", ".log"))
    assert "password" not in words


def test_a_round_goes_on_when_its_broker_is_killed(start: Start, tmp_path: Path) -> None:
    program = start(
        "run", "--transport", "mqtt", "--model", "payload:1MiB", "--clients", "2", "--rounds", "40", "--json"
    )
    program.until("round 2/40")
    (broker,) = mosquittos(program.process.pid)
    os.kill(broker, signal.SIGKILL)
    code, out, err = program.end()
    assert code == 0, err
    done = json.loads(out)
    assert [entry["round"] for entry in done["rounds"]] == list(range(1, 41))
    events = json.loads((tmp_path / done["record"] / "manifest.json").read_text())["broker"]["events"]
    said = [event["what"] for event in events]
    assert any("was killed by signal 9" in what for what in said), said
    assert any("was started again" in what for what in said), said


def test_a_killed_run_leaves_no_broker(start: Start) -> None:
    program = start("run", "--transport", "mqtt", "--model", "payload:1MiB", "--clients", "2", "--rounds", "4000")
    program.until("round 1/4000")
    (broker,) = mosquittos(program.process.pid)
    watch = os.pidfd_open(broker)
    program.process.kill()
    program.end()
    import select

    assert select.select([watch], [], [], 30.0)[0], "the broker goes on"
    os.close(watch)
