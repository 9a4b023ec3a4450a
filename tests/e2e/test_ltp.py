"""Runs over links that lose packets, with ltp, which sends each chunk once and then repairs the allowed part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import why_no_lab
from thalweg.record import Record

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-"),
]

Run = Callable[..., Any]
CLIENTS, BYTES = 2, 4 << 20
PLAN = f"""
[job]
clients = {CLIENTS}
rounds = 2
[model]
name = "payload:4MiB"
[transport]
url = "ltp"
[network]
rate = "100mbit"
delay = "5ms"
loss = "2%"
emulator = "packet"
"""
CLOSES_EARLY = """
[transport.options]
close_percent = 90
[repair]
resend = false
"""

REPAIRS = """
[transport.options]
repair = 0.1
"""


def uploads(result: Run, folder: Path, text: str) -> list[dict[str, Any]]:
    """Run a plan; return the record's transfers of updates."""
    (folder / "plan.toml").write_text(text)
    record = Record(folder / result("run", "plan.toml")["record"])
    assert len(record.entries) == 2
    ways = [dict(way) for entry in record.entries for way in entry["transfers"]]
    return [way for way in ways if way["direction"] == "up"]


def test_all_of_an_update_comes_whatever_is_lost(result: Run, tmp_path: Path) -> None:
    ways = uploads(result, tmp_path, PLAN)
    assert len(ways) == 2 * CLIENTS
    for way in ways:
        assert (way["bytes"], way["missing"]) == (BYTES, 0)
        assert way["wire_bytes"] > BYTES


def test_repair_packets_change_nothing_but_the_bytes_on_the_wire(result: Run, tmp_path: Path) -> None:
    for way in uploads(result, tmp_path, PLAN + REPAIRS):
        assert (way["bytes"], way["missing"]) == (BYTES, 0)
        assert way["wire_bytes"] > BYTES


def test_an_update_that_closes_early_lacks_no_more_than_it_may(result: Run, tmp_path: Path) -> None:
    for way in uploads(result, tmp_path, PLAN + CLOSES_EARLY):
        assert way["bytes"] + way["missing"] == BYTES
        assert way["missing"] <= 0.1 * BYTES
