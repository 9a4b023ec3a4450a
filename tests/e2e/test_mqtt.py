"""Jobs through a broker that the run starts, watches and ends."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.e2e.conftest import Start, why_no_lab
from tests.ports import free_ports
from thalweg.brokers.base import installed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(installed("mosquitto") is None, reason="mosquitto is not installed: make system"),
]
Run = Callable[..., Any]


def mosquittos(parent: int) -> list[int]:
    """Return the ids of a process's brokers, which are children of their supervisors, which are its children."""
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


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[str]:
    """Run a broker that accepts packets of at most 100,000 bytes; yield the URL for a job through it."""
    (port,) = free_ports(1)
    (tmp_path / "narrow.conf").write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_packet_size 100000\npersistence false\n"
        f"user {pwd.getpwuid(os.geteuid()).pw_name}\nlog_type notice\nlog_type information\nlog_dest stderr\n"
    )
    program = [installed("mosquitto") or "mosquitto", "-c", str(tmp_path / "narrow.conf")]
    broker = subprocess.Popen(program, stderr=subprocess.PIPE, text=True)
    assert broker.stderr is not None
    assert any("running" in line for line in broker.stderr), "the broker did not start"
    yield f"mqtt://127.0.0.1:{port}/narrow"
    broker.terminate()
    broker.communicate()


CHUNKS = '[transport]\nchunk = "256KiB"\n'


@pytest.mark.parametrize("options", [(), ("--option", "version=3.1.1", "--option", "max_packet=100000")])
def test_chunks_are_as_small_as_a_broker_wants_them(
    result: Run, tmp_path: Path, narrow: str, options: tuple[str, ...]
) -> None:
    """Chunks have 262,144 bytes, as the plan says, unless the broker accepts only smaller messages."""
    (tmp_path / "plan.toml").write_text(CHUNKS)
    job = ("--model", "payload:1MiB", "--clients", "2", "--rounds", "2")
    done = result("run", "plan.toml", "--transport", narrow, *job, *options)
    assert [(entry["participants"], entry["complete"]) for entry in done["rounds"]] == [(2, True), (2, True)]
    log = (tmp_path / done["record"] / "log.txt").read_text()
    assert re.search(r"chunks have 9[0-9]{4} bytes and not 262144, because the broker takes no longer messages", log)


def test_a_broker_limit_that_is_not_announced_is_explained(start: Start, tmp_path: Path, narrow: str) -> None:
    (tmp_path / "plan.toml").write_text(CHUNKS)
    job = ("--model", "payload:1MiB", "--clients", "1", "--rounds", "1", "--deadline", "5")
    program = start("run", "plan.toml", "--transport", narrow, *job, "--option", "version=3.1.1")
    said = program.until("before it had taken the longest message so far, of 262")
    assert "max_packet" in said
    program.process.terminate()
    program.end()


@pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")
def test_a_broker_with_a_host_of_its_own(result: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('[network]\nrate = "100mbit"\n[network.broker]\nrate = "80mbit"\ndelay = "5ms"\n')
    done = result("run", str(plan), "--transport", "mqtt", "--model", "payload:1MiB", "--clients", "2", "--rounds", "2")
    assert [(entry["participants"], entry["complete"]) for entry in done["rounds"]] == [(2, True), (2, True)]
    record = tmp_path / done["record"]
    manifest = json.loads((record / "manifest.json").read_text())
    assert (done["emulation"], manifest["broker"]["party"]) == ("packet level", "broker")
    rows = {(row["source"], row["target"]): row for row in parquet.read_table(record / "links.parquet").to_pylist()}
    assert {ends for ends in rows if "broker" in ends} == {("broker", "switch"), ("switch", "broker")}
    # Each round, the broker receives one model and all updates, and sends a model to each client and all updates to the
    # server.
    assert 6 << 20 < rows["switch", "broker"]["bytes_out"] < 8 << 20
    assert rows["broker", "switch"]["bytes_out"] > 8 << 20
    assert rows["broker", "switch"]["delay_p50"] >= 0.005
    parties = {row["party"]: row for row in parquet.read_table(record / "parties.parquet").to_pylist()}
    assert set(parties) == {"server", "client-1", "client-2", "broker"}
    assert parties["broker"]["retransmitted_segments"] is not None
    least = manifest["bound"]["round_seconds"]
    # At 80 Mbit/s: two models leave the broker, and one update goes into it and out of it.
    assert least > 3 * (1 << 20) * 8 / 80e6
    assert all(entry["communication_seconds"] > least for entry in done["rounds"]), "nothing beats the links"


def restricted() -> str:
    """Return a congestion control that the kernel refuses as a namespace's default; any if it refuses none."""
    folder = Path("/proc/sys/net/ipv4")
    allowed, known = (
        (folder / f"tcp_{kind}_congestion_control").read_text().split() for kind in ("allowed", "available")
    )
    return next((name for name in known if name not in allowed), known[0])


@pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")
def test_a_brokers_connections_take_a_congestion_control_that_its_namespace_refuses(
    result: Run, tmp_path: Path
) -> None:
    chosen = restricted()
    done = result(
        "run", "--transport", "mqtt", "--model", "payload:256KiB", "--clients", "2", "--rounds", "1",
        "--network", "rate=100mbit", "--emulator", "packet", "--congestion", chosen,
    )  # fmt: skip
    assert done["rounds"][0]["complete"]
    rows = parquet.read_table(tmp_path / done["record"] / "parties.parquet").to_pylist()
    assert {row["party"]: row["congestion_control"] for row in rows}["broker"] == chosen


def test_a_round_goes_on_when_its_broker_is_killed(start: Start, tmp_path: Path) -> None:
    program = start(
        "run", "--transport", "mqtt", "--model", "payload:1MiB", "--clients", "2", "--rounds", "40", "--json",
        "--compute", "100ms",
    )  # fmt: skip
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
