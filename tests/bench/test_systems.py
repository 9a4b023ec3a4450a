"""Other systems beside thalweg: which plans they can do, and what a run of one leaves."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import why_no_lab
from thalweg.advise.evidence import gather
from thalweg.bench import BenchPlan, Matrix
from thalweg.bench.answers import way
from thalweg.bench.measure import measure
from thalweg.bench.process import Failure, execute
from thalweg.bench.results import figures
from thalweg.bench.systems import System
from thalweg.errors import PlanError
from thalweg.job.common.session import since
from thalweg.lab.status import HostCounters, LinkStatus, Status
from thalweg.plan import Plan
from thalweg.record import Record
from thalweg.report import report

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples" / "system.py")
COMMAND = [sys.executable, EXAMPLE]
SOCKETS: dict[str, Any] = {"name": "sockets", "command": COMMAND}
FAKES = ROOT / "tests" / "systems" / "fakes"
BASE: dict[str, Any] = {"job": {"clients": 2, "rounds": 2}, "model": {"name": "payload:64KiB"}}


def matrix(axes: Mapping[str, Any], base: Mapping[str, Any] | None = None, **settings: Any) -> Matrix:
    table = {"base": {**BASE, **(base or {})}, "matrix": axes, "limit": 60.0, **settings}
    return Matrix.of(BenchPlan.of(table))


def ran(
    tmp_path: Path, command: list[str], *, network: str | None = None, **options: Any
) -> tuple[Path, Failure | None]:
    """Run a plan by another system in a worker process. Return the record and why it failed."""
    plan = Plan.of(BASE).merge({"record.folder": str(tmp_path / "runs"), "network": network})
    (tmp_path / "plan.toml").write_text(plan.to_toml())
    system = System(name="sockets", command=command, options=options)
    failure = execute(tmp_path / "plan.toml", tmp_path / "log", 120.0, system)
    (record,) = (tmp_path / "runs").iterdir()
    return record, failure


def test_a_system_is_a_way_that_is_measured_once_in_each_network() -> None:
    made = matrix({"system": ["thalweg", SOCKETS], "transport": ["tcp", "quic"], "network": ["none", "wan"]})
    assert [(cell.number, cell.system and cell.system.name, cell.settings) for cell in made.cells[4:]] == [
        (5, "sockets", {"system": "sockets", "transport": "-", "network": "none"}),
        (6, "sockets", {"system": "sockets", "transport": "-", "network": "wan"}),
    ]
    assert [cell.system for cell in made.cells[:4]] == [None] * 4
    assert [one.reason for one in made.skipped] == [
        "sockets does not use these settings: cell 5 measures the same",
        "sockets does not use these settings: cell 6 measures the same",
    ]
    rows = [figures(cell.number, cell.settings, "complete", [], ()) for cell in made.cells]
    assert [way(row) for row in rows] == [
        "thalweg tcp",
        "thalweg tcp",
        "thalweg quic",
        "thalweg quic",
        "sockets",
        "sockets",
    ]
    assert made.accounting == "round"
    assert matrix({"system": ["thalweg"]}).accounting == "measured"


def test_a_case_gives_thalweg_settings_that_another_system_lacks() -> None:
    cases = [{"name": "int8", "compression": {"scheme": "int8"}}, {"name": "sockets", "system": SOCKETS}]
    ours, theirs = matrix({"case": cases}).cells
    assert (ours.system, ours.plan.compression.scheme) == (None, "int8")
    assert theirs.system == System(**SOCKETS)
    assert theirs.settings == {"case": "sockets"}


@pytest.mark.parametrize(
    ("base", "cause"),
    [
        ({"model": {"name": "lenet"}}, "sockets moves bytes and trains nothing, and lenet is trained"),
        ({"model": {"name": "payload:f64:64KiB"}}, "sockets moves float32 values"),
        ({"job": {"clients": 4, "graph": "ring"}}, "sockets has a server and clients here, and no graph"),
        ({"compression": {"scheme": "int8"}}, r"sockets knows nothing of compression\.scheme"),
        ({"repair": {"resend": False}, "transport": {"url": "ltp"}}, r"sockets knows nothing of repair\.resend"),
        ({"job": {"clients": 4, "enough": 3}}, r"sockets knows nothing of job\.enough"),
        ({"training": {"compute": "1s"}}, r"sockets knows nothing of training\.compute"),
        ({"network": {"profile": "wan", "emulator": "message"}}, "can be emulated at packet level only"),
        ({"network": {"profile": "wan", "clock": "virtual"}}, "sockets has no virtual time"),
    ],
)
def test_what_another_system_does_not_do_is_refused(base: dict[str, Any], cause: str) -> None:
    with pytest.raises(PlanError, match=rf"cell 1 .*{cause}") as refused:
        matrix({"system": [SOCKETS]}, base)
    assert refused.value.kind == "plan"
    assert refused.value.hint


def test_what_only_tunes_thalweg_may_be_there() -> None:
    base = {"transport": {"url": "quic", "congestion": "bbr"}, "job": {"clients": 2, "liveness": 60.0}}
    (cell,) = matrix({"system": [SOCKETS]}, base).cells
    assert (cell.plan.scheme, cell.plan.transport.congestion) == ("tcp", None)


@pytest.mark.parametrize(
    ("system", "cause"),
    [
        ("gRPC", "the system 'gRPC' is not thalweg, and has no command"),
        ({"name": "gRPC"}, "gRPC: .*command"),
        ({"name": "gRPC", "command": []}, "gRPC: .*command"),
        ({**SOCKETS, "option": {}}, "option"),
    ],
)
def test_systems_that_are_written_wrongly(system: object, cause: str) -> None:
    with pytest.raises(PlanError, match=cause):
        matrix({"system": [system]})


def test_a_bench_with_another_system_says_how_long_a_run_may_take_and_compares_rounds() -> None:
    with pytest.raises(PlanError, match="nothing ends a run of sockets") as refused:
        matrix({"system": ["thalweg", SOCKETS]}, limit=None)
    assert "limit = " in refused.value.hint
    with pytest.raises(PlanError, match="accounting is 'fedcomm', and of sockets only whole rounds are known"):
        matrix({"system": ["thalweg", SOCKETS]}, accounting="fedcomm")


def test_a_run_leaves_a_record_that_everything_reads(tmp_path: Path) -> None:
    record, failure = ran(tmp_path, COMMAND)
    assert failure is None, (tmp_path / "log").read_text()
    numbers = measure(record)
    assert len(numbers.rounds) == 2
    assert all(row.seconds is not None and row.seconds > 0 and row.complete for row in numbers.rounds)
    assert all(row.communication_seconds is None and row.bound_seconds is not None for row in numbers.rounds)
    assert numbers.update_bytes == 2 * 2 * 2 * (64 << 10)
    assert (numbers.wire_bytes, numbers.wire_counted) == (None, None)
    assert numbers.peak_rss_bytes.server is not None
    assert numbers.peak_rss_bytes.server > 64 << 10
    assert numbers.transport is not None
    assert numbers.transport.startswith("sockets")
    assert Record(record).manifest["system"] == {"name": "sockets", "command": COMMAND, "options": {}}
    page = tmp_path / "page.html"
    report([record], page)
    assert "sockets" in page.read_text()
    assert gather([record]) == ([], {str(record.resolve()): "sockets did its rounds, and not thalweg"})


@pytest.mark.skipif(why_no_lab() != "", reason=why_no_lab())
def test_bytes_on_emulated_links_are_those_of_the_rounds_that_count(tmp_path: Path) -> None:
    record, failure = ran(tmp_path, COMMAND, network="lan")
    assert failure is None, (tmp_path / "log").read_text()
    numbers = measure(record)
    assert (numbers.wire_counted, numbers.emulation) == ("ip", "packet level")
    assert numbers.wire_ratio is not None
    assert 1.0 < numbers.wire_ratio < 1.3, "the first round's bytes do not count"
    for row in numbers.rounds:
        assert row.seconds is not None
        assert row.bound_seconds is not None
        assert row.seconds > row.bound_seconds


@pytest.mark.parametrize(
    ("party", "options", "cause"),
    [
        ("right", {"error": 0.5}, "round 1 of sockets has the mean 3.0, and 2.5 is correct"),
        ("dies", {}, "client-1 of sockets ended with exit code 1: this client has a fault"),
    ],
)
def test_a_run_that_fails_says_why(tmp_path: Path, party: str, options: dict[str, Any], cause: str) -> None:
    record, failure = ran(tmp_path, [sys.executable, str(FAKES / party / "party.py")], **options)
    assert failure is not None
    assert cause in failure.cause
    assert failure.hint
    manifest = Record(record).manifest
    assert manifest["status"] == "failed"
    assert cause in manifest["reason"]


def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "nothing").mkdir()
    _, failure = ran(tmp_path, ["no-such-program"])
    assert failure is not None
    assert failure.cause == "sockets cannot be started: there is no program 'no-such-program'"


def test_processes_that_a_party_leaves_behind_are_ended(tmp_path: Path) -> None:
    script = tmp_path / "leaves.py"
    script.write_text(
        "import runpy, subprocess\n"
        "left = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"open({str(tmp_path)!r} + f'/left-{{left.pid}}', 'w').close()\n"
        f"runpy.run_path({EXAMPLE!r}, run_name='__main__')\n"
    )
    _, failure = ran(tmp_path, [sys.executable, str(script)])
    assert failure is None, (tmp_path / "log").read_text()
    left = [int(path.name.removeprefix("left-")) for path in tmp_path.glob("left-*")]
    assert len(left) == 3
    assert [pid for pid in left if Path(f"/proc/{pid}").exists()] == []


def test_counters_since_a_moment() -> None:
    link = LinkStatus(link="client-1", direction="ab", bytes_in=100, lost=1, queue_bytes_max=7)
    before = Status(links=[link], hosts={"server": HostCounters(retransmitted_segments=2)})
    after = Status(
        links=[replace(link, bytes_in=250, queue_bytes_max=9)], hosts={"server": HostCounters(retransmitted_segments=5)}
    )
    counted = since(before, after)
    assert [(one.bytes_in, one.lost, one.queue_bytes_max) for one in counted.links] == [(150, 0, 9)]
    assert counted.hosts["server"].retransmitted_segments == 3
    assert counted.hosts["server"].rx_packets is None
    assert since(Status(), after) == after


def test_an_order_names_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from thalweg.bench import process

    monkeypatch.chdir(tmp_path)
    script = "import sys; open('order', 'w').write(sys.stdin.read()); print('{}')"
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-c", script))
    execute(tmp_path / "plan.toml", tmp_path / "log", None, System(name="sockets", command=["program"]))
    order = json.loads((tmp_path / "order").read_text())
    assert order["parent"] == os.getpid()
    assert order["system"] == {"name": "sockets", "command": ["program"], "options": {}, "environ": {}}
