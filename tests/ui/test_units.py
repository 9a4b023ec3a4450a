from __future__ import annotations

import pytest

from thalweg.ui.units import (
    format_bytes,
    format_rate,
    format_seconds,
    parse_fraction,
    parse_rate,
    parse_seconds,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [("8MiB", 8 << 20), ("8 MiB", 8 << 20), ("1.5kB", 1500), ("77", 77), ("2GB", 2 * 10**9), ("1.005kB", 1005)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "rate"), [("20Mbit/s", 20_000_000), ("20mbit", 20_000_000), ("5 MB/s", 40_000_000), ("3g", 5_000_000)]
)
def test_rates(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e9", "8mib", "0.3B", "9999999999999GiB", "8MiB/s"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="as 8MiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("40ms", 0.04), ("0.3", 0.3), ("250us", 0.00025), ("6 min", 360.0), ("1h", 3600.0), ("0", 0.0)],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(("text", "fraction"), [("1%", 0.01), ("0.1 %", 0.001), ("0.25", 0.25), ("100%", 1.0)])
def test_fractions(text: str, fraction: float) -> None:
    assert parse_fraction(text) == fraction


@pytest.mark.parametrize("text", ["", "ms", "-1ms", "nan", "inf", "1e3", "4 parsecs", "%"])
def test_what_is_no_time_and_no_fraction(text: str) -> None:
    with pytest.raises(ValueError, match="as 40ms"):
        parse_seconds(text)
    with pytest.raises(ValueError, match="as 1%"):
        parse_fraction(text)


def test_formats() -> None:
    assert [format_bytes(n) for n in (12, 8 << 20, 5 << 30)] == ["12 B", "8.0 MiB", "5.00 GiB"]
    assert [format_rate(n) for n in (5e6, 2.5e10)] == ["5.0 Mbit/s", "25.00 Gbit/s"]
    assert [format_seconds(n) for n in (1e-4, 0.0852, 12.34)] == ["100 us", "85.2 ms", "12.34 s"]
