"""Runs whose server masks losses of unmodified clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import why_no_lab
from thalweg.record import Record

pytestmark = pytest.mark.e2e

Run = Callable[..., Any]
CLIENTS, BYTES = 2, 4 << 20
PLAN = f"""
[job]
clients = {CLIENTS}
rounds = 1
[model]
name = "payload:4MiB"
[transport]
url = "unifl"
congestion = "cubic"
[transport.options]
backend = "BACKEND"
budget = BUDGET
[repair]
resend = false
[network]
rate = "100mbit"
delay = "5ms"
up = {{ loss = "1%" }}
emulator = "packet"
"""


RECORD = 1432
TLS = '[security]\ntls = "on"\n'
SEAL = f"[layers.seal]\nrecord = {RECORD}\n"

lab = pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")
backends = pytest.mark.parametrize("backend", ["tun", "ebpf"])


def plan(backend: str, budget: str) -> str:
    return PLAN.replace("BACKEND", backend).replace("BUDGET", budget)


def run_plan(result: Run, folder: Path, text: str) -> tuple[list[dict[str, Any]], str]:
    """Run a plan; return the journal's entries and the log."""
    (folder / "plan.toml").write_text(text)
    record = Record(folder / result("run", "plan.toml")["record"])
    log = (record.path / "log.txt").read_text()
    if "has backend tun instead of ebpf" in log:
        pytest.skip(next(line for line in log.splitlines() if "backend tun instead" in line))
    return [dict(entry) for entry in record.entries], log


def ways(entry: dict[str, Any], direction: str) -> list[dict[str, Any]]:
    return [way for way in entry["transfers"] if way["direction"] == direction]


@lab
@backends
def test_what_the_network_loses_is_missing_and_nothing_else(result: Run, tmp_path: Path, backend: str) -> None:
    (entry,), log = run_plan(result, tmp_path, plan(backend, "0.05"))
    assert "plain tcp" not in log
    for way in ways(entry, "up"):
        assert way["bytes"] + way["missing"] == BYTES
        assert 0 < way["missing"] < 0.05 * BYTES
        assert way["repair"] == "renormalise"
    for way in ways(entry, "down"):
        assert way["missing"] == 0


@lab
@backends
def test_without_a_budget_nothing_is_missing(result: Run, tmp_path: Path, backend: str) -> None:
    (entry,), _ = run_plan(result, tmp_path, plan(backend, "0"))
    assert entry["complete"]
    assert all(way["missing"] == 0 for way in entry["transfers"])


@lab
def test_sealed_updates_lose_the_records_that_holes_touch(result: Run, tmp_path: Path) -> None:
    (entry,), log = run_plan(result, tmp_path, plan("tun", "0.05") + TLS + SEAL)
    assert "plain tcp" not in log
    for way in ways(entry, "up"):
        assert way["bytes"] + way["missing"] == BYTES
        assert 0 < way["missing"] < 0.1 * BYTES
        assert way["missing"] <= way["records_lost"] * RECORD
        # More than the update: the authentication tags of all sealed records, and headers. Less than that: the lost
        # bytes.
        assert way["wire_bytes"] > way["bytes"] * (1 + 16 / RECORD)
    for way in ways(entry, "down"):
        assert way["missing"] == 0
        assert way["records_lost"] is None


@backends
def test_updates_that_are_not_sealed_stay_under_tls_and_it_says_so(result: Run, tmp_path: Path, backend: str) -> None:
    text = plan(backend, "0.05").partition("[network]")[0]
    (entry,), log = run_plan(result, tmp_path, text + TLS)
    assert entry["complete"]
    assert "is served as plain tcp: TLS needs every byte" in log
    assert all(way["records_lost"] is None for way in entry["transfers"])


@backends
def test_without_masking_unifl_is_tcp_and_reports_it(result: Run, tmp_path: Path, backend: str) -> None:
    text = plan(backend, "0.05").partition("[network]")[0]
    (entry,), log = run_plan(result, tmp_path, text)
    assert entry["complete"]
    assert "is served as plain tcp: the loopback loses nothing" in log
