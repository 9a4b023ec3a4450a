"""The text about a lab's links."""

from __future__ import annotations

from dataclasses import replace

from thalweg.lab import words
from thalweg.lab.changing import Change
from thalweg.lab.status import LinkStatus, Percentiles
from thalweg.network.shape import Shape

SHAPE = Shape(rate=5_000_000, delay=0.02, loss=0.05, queue_bytes=65536)


def test_units_and_which_way() -> None:
    line = words.changed(Change("client-1", "ab", SHAPE))
    assert line == "client-1 up: rate 5 Mbit/s, delay 20 ms, loss 5 %, queue bytes 64 KiB"
    assert words.changed(Change("a", "ba", Shape())) == "a down: no limits"


def test_a_link_that_is_down_says_so() -> None:
    assert words.state(replace(SHAPE, down=True)).startswith("not connected; else rate 5 Mbit/s")


def test_a_row_of_the_table() -> None:
    link = LinkStatus(
        link="client-1", direction="ba", shape=SHAPE, packets_in=12345, lost=3, queue_drops=1, down_drops=1,
        queue_bytes=2048, delay=Percentiles(p50=0.0201, max=0.5),
    )  # fmt: skip
    cells = words.row(link)
    assert len(cells) == len(words.HEAD)
    assert cells[0] == "client-1 down"
    assert cells[2:] == ["12,345", "3", "2", "2.0 KiB", "20.1 ms", "-", "500.0 ms"]
