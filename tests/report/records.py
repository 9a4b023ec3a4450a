"""Generated records that have the form of real ones, and known numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.outcomes import outcome_of
from thalweg.plan import Plan
from thalweg.record.tables import entry, write_parquet, write_table

UPDATE = 1_000_000
SHAPE = {"rate": 60_000_000, "delay": 0.02, "loss": 0.01, "queue_bytes": 262_144, "down": False}


def make(
    folder: Path,
    *,
    rounds: int = 4,
    names: Sequence[str] = ("client-1", "client-2"),
    plan: Mapping[str, Any] | None = None,
    manifest: Mapping[str, Any] | None = None,
    train: float | None = 1.0,
    lab: bool = True,
    parquet: bool = True,
) -> Path:
    """Write a record and return its folder. In round n each direction of communication takes 0.1 n seconds."""
    folder.mkdir(parents=True)
    sections: dict[str, Any] = {
        "job": {"clients": len(names), "rounds": rounds},
        "model": {"name": "lenet"},
        **(plan or {}),
    }
    (folder / "plan.toml").write_text(Plan.of(sections).to_toml())
    (folder / "manifest.json").write_text(json.dumps({**facts(lab=lab), **(manifest or {})}))
    entries = [round_entry(number, names, train) for number in range(1, rounds + 1)]
    (folder / "journal.jsonl").write_text("".join(json.dumps(one) + "\n" for one in entries))
    if parquet:
        write_parquet(folder, entries)
    if lab:
        write(folder, "links", [row for name in names for row in links(name)])
        write(folder, "queues", [row for name in names for row in queues(name, rounds)])
        write(folder, "parties", [party(name) for name in ("server", *names)])
    return folder


def facts(*, lab: bool) -> dict[str, Any]:
    said: dict[str, Any] = {
        "status": "complete",
        "started": "2026-01-01T12:00:00.000+00:00",
        "thalweg": {"version": "0.1.0", "commit": "abcdef123456"},
        "kernel": "Linux 6.1",
        "machine": {"cpu": "A processor", "cores": 2, "memory_bytes": 8 << 30},
        "tls": False,
        "address": "tcp://127.0.0.1:40000",
        "emulation": "packet level" if lab else "none",
        "bound": {"source": "each link has 60 Mbit/s", "link_bits_per_second": 80e6, "total_bytes_per_second": None},
    }
    network = {"profile": "wifi", "topology": "star", "spec": {}, "reason": None, "relay": {"cpu_seconds": 0.1}}
    return {**said, "network": network} if lab else said


def round_entry(number: int, names: Sequence[str], train: float | None) -> Any:
    begin = 10.0 * number
    parts = [
        {"client": name, "state": "whole", "samples": 100, "coverage": 1.0, "reason": None,
         "metrics": {},
         "usage": {"peak_rss_bytes": 50_000_000, **({} if train is None else {"train_seconds": train})}}
        for name in names
    ]  # fmt: skip
    outcome: Any = {
        "round": number,
        "expected": len(names),
        "complete": True,
        "start": begin,
        "seconds": 0.2 * number + (train or 0.0),
        "communication_seconds": 0.2 * number,
        "bytes_down": UPDATE * len(names),
        "bytes_up": UPDATE * len(names),
        "participants": parts,
        "transfers": [
            transfer(number, name, way, begin + (0 if way == "down" else 0.1 * number + (train or 0.0)))
            for name in names
            for way in ("down", "up")
        ],
    }
    evaluation = {} if train is None else {"accuracy": 1 - 0.5 / number, "loss": 1.0 / number}
    return entry(outcome_of(**outcome), evaluation, None if train is None else 0.25)


def transfer(number: int, client: str, direction: str, start: float) -> dict[str, Any]:
    return {
        "round": number, "client": client, "direction": direction, "bytes": UPDATE, "wire_bytes": UPDATE + 1000,
        "send_start": start, "send_end": start + 0.09 * number, "receive_start": start + 0.01,
        "receive_end": start + 0.1 * number, "retransmissions": 3 if direction == "down" else None, "duplicates": 0,
        "corrupt": 0, "copied": 0, "resumed": 0, "complete": True,
    }  # fmt: skip


def links(name: str) -> list[dict[str, Any]]:
    ends = {"ab": (name, "server"), "ba": ("server", name)}
    return [
        {
            "link": name, "direction": direction, "source": source, "target": target, "nominal": json.dumps(SHAPE),
            "packets_in": 10_000, "bytes_in": 15_000_000, "packets_out": 9_850, "bytes_out": 14_775_000, "lost": 100,
            "queue_drops": 50, "down_drops": 0, "overflow_drops": 0, "duplicated": 0, "reordered": 0,
            "queue_bytes_max": 200_000, "delay_p50": 0.0201, "delay_p90": 0.0205, "delay_p99": 0.0213,
            "delay_max": 0.025, "lateness_p50": 0.0001, "lateness_p99": 0.0004, "lateness_max": 0.002,
        }
        for direction, (source, target) in ends.items()
    ]  # fmt: skip


def queues(name: str, rounds: int) -> list[dict[str, Any]]:
    """Return samples, 10 ms apart: in each round 0.1 s at 80 Mbit/s one way, and a second later the other way."""
    return [
        {
            "seconds": 10.0 * number + begin + 0.01 * step, "link": name, "direction": direction,
            "queue_bytes": 20_000 * (step % 10), "queue_packets": 14 * (step % 10),
            "bytes_out": UPDATE * (number - 1) + 100_000 * step, "packets_out": 70 * step, "rate": 60e6,
        }
        for direction, begin in (("ab", 2.0), ("ba", 0.0))
        for number in range(1, rounds + 1)
        for step in range(1, 11)
    ]  # fmt: skip


def party(name: str) -> dict[str, Any]:
    stress = {"cpu": 99, "operations_per_second": 12.5} if name == "client-1" else None
    return {
        "party": name, "cpu_seconds": 1.25, "peak_rss_bytes": 100 << 20, "retransmitted_segments": 7,
        "receive_buffer_drops": 0, "limiter_drops": 0, "congestion_control": "cubic",
        "cpu_quota": 0.2 if stress else None, "stress": None if stress is None else json.dumps(stress),
    }  # fmt: skip


def write(folder: Path, name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Write a table in the way in which a run does at its end."""
    write_table(folder, name, [list(rows)])
