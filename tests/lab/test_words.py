"""The text about a lab's links."""

from __future__ import annotations

from typing import Any

from thalweg.lab import words

SHAPE: dict[str, Any] = {
    "rate": 5_000_000, "delay": 0.02, "jitter": 0.0, "loss": 0.05, "burst": None, "queue_bytes": 65536, "down": False,
}  # fmt: skip


def test_units_and_which_way() -> None:
    line = words.changed({"link": "client-1", "direction": "ab", "shape": SHAPE})
    assert line == "client-1 up: rate 5 Mbit/s, delay 20 ms, loss 5 %, queue bytes 64 KiB"
    assert words.changed({"link": "a", "direction": "ba", "shape": {"down": False}}) == "a down: no limits"


def test_a_link_that_is_down_says_so() -> None:
    assert words.state({**SHAPE, "down": True}).startswith("not connected; else rate 5 Mbit/s")


def test_a_row_of_the_table() -> None:
    link = {
        "link": "client-1", "direction": "ba", "shape": SHAPE, "packets_in": 12345, "lost": 3, "queue_drops": 1,
        "down_drops": 1, "overflow_drops": 0, "queue_bytes": 2048, "delay": {"p50": 0.0201, "p99": None, "max": 0.5},
    }  # fmt: skip
    cells = words.row(link)
    assert len(cells) == len(words.HEAD)
    assert cells[0] == "client-1 down"
    assert cells[2:] == ["12,345", "3", "2", "2.0 KiB", "20.1 ms", "-", "500.0 ms"]
