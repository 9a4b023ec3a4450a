"""Charts as text."""

from __future__ import annotations

from thalweg.ui.terminal import BAR, bars

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
