"""Charts and tables as text."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from thalweg.cli.summary import COLUMNS
from thalweg.ui.terminal import BAR, bars, table

ROWS = [("tcp", 1.0, "1 s"), ("a longer name", 2.0, "2 s"), ("udp", 0.001, "1 ms"), ("ltp", None, "failed")]


def test_bars_are_as_long_as_values() -> None:
    lines = bars(ROWS, plain=False)
    assert [line.count("█") for line in lines] == [BAR // 2, BAR, 0, 0]
    assert {line.index(words) for line, (_, _, words) in zip(lines, ROWS, strict=True)} == {len(ROWS[1][0]) + BAR + 4}
    assert [line.split()[0] for line in lines] == ["tcp", "a", "udp", "ltp"]


def test_where_blocks_cannot_be_shown() -> None:
    lines = bars(ROWS, plain=True)
    assert [line.count("#") for line in lines] == [BAR // 2, BAR, 0, 0]
    assert all(line.isascii() for line in lines)


def test_nothing_has_no_bars() -> None:
    assert bars([]) == []
    assert bars([("a", None, "-"), ("b", 0.0, "0 s")], plain=True) == [f"a  {'':{BAR}}  -", f"b  {'':{BAR}}  0 s"]


# A row of a long run over slow links, as `thalweg run` prints it.
CELLS = ("1000", "42.60 %", "1.05 min", "12.5 s", "703.5 MiB", "702.1 MiB", "16/16", "16.55 Gbit/s", "100 %")


def shown(width: int) -> list[str]:
    made = table("round", "accuracy", *COLUMNS, right=True)
    made.add_row(*CELLS)
    console = Console(file=io.StringIO(), width=width)
    console.print(made)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 90, 120, 200])
def test_a_table_of_rounds_fits_and_loses_nothing(width: int) -> None:
    lines = shown(width)
    assert all(len(line) <= width for line in lines)
    assert any(line.split() == " ".join(CELLS).split() for line in lines), "one line a round"
    heading = " ".join(lines[: next(number for number, line in enumerate(lines) if "───" in line)])
    words = "".join(heading.split()).replace("-", "")
    assert "…" not in "".join(lines)
    assert ("communication" in words) == (width >= 120)
    assert "goodput" in words


@pytest.mark.parametrize("width", [30, 50])
def test_a_very_narrow_one_wraps(width: int) -> None:
    lines = shown(width)
    assert all(len(line) <= width for line in lines)
    assert "…" not in "".join(lines)
    found, wanted = "".join(lines), "".join(CELLS)
    assert {digit: found.count(digit) for digit in "0123456789"} == {
        digit: wanted.count(digit) for digit in "0123456789"
    }
