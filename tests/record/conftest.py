from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.outcomes import outcome_of, outcome_table
from thalweg import machine
from thalweg.plan import Plan
from thalweg.record import RunRecord, entry

# Two float32 tensors and an integer one, each at a multiple of 64, as arenas have them.
TENSORS = [("weight", "F32", [4, 5], 0), ("bias", "F32", [4], 128), ("batches", "I64", [], 192)]


@pytest.fixture
def arena() -> bytearray:
    return bytearray(range(200))


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return Plan.of({"job": {"clients": 2, "rounds": 4}, "record": {"folder": str(tmp_path / "runs")}})


@pytest.fixture
def record(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunRecord]:
    monkeypatch.setattr(machine, "build", lambda: {"version": "0", "commit": "c"})
    record = RunRecord.create(plan, {"address": "tcp://127.0.0.1:1"})
    yield record
    record.close()


def outcome(number: int) -> Any:
    """The core's outcome of a round in which the second client was lost."""
    table: dict[str, Any] = {
        "round": number,
        "expected": 2,
        "complete": False,
        "start": 0.1,
        "seconds": 3.0,
        "communication_seconds": 0.5,
        "bytes_down": 800,
        "bytes_up": 500,
        "participants": [
            {"client": "a", "state": "whole", "samples": 10, "metrics": {}, "coverage": 1.0,
             "usage": {"train_seconds": 2.0}, "reason": None},
            {"client": "b", "state": "lost", "samples": 0, "metrics": {}, "usage": {}, "coverage": 0.0,
             "reason": "it went away"},
        ],
        "transfers": [
            transfer(number, "a", "down", 3),
            transfer(number, "b", "down", 4),
            transfer(number, "a", "up", None),
        ],
        "fold": {"folded": True, "replies": 2, "errors": 1},
    }  # fmt: skip
    return outcome_table(**table)


def transfer(number: int, client: str, direction: str, retransmissions: int | None) -> dict[str, Any]:
    return {
        "round": number,
        "client": client,
        "direction": direction,
        "bytes": 400,
        "wire_bytes": 420,
        "send_start": 0.1,
        "send_end": 0.2,
        "receive_start": 0.1,
        "receive_end": None,
        "retransmissions": retransmissions,
        "duplicates": 0,
        "copied": 0,
        "resumed": 0,
        "complete": True,
    }


def round_entry(number: int) -> Any:
    return entry(outcome_of(**outcome(number)), {"accuracy": 0.5 + number / 100, "loss": 1.0}, 0.25)
