from __future__ import annotations

import pytest

from thalweg.units import format_bytes, format_rate, format_seconds, parse_rate, parse_size


@pytest.mark.parametrize(
    ("text", "size"), [("8MiB", 8 << 20), ("8 MiB", 8 << 20), ("1.5kB", 1500), ("77", 77), ("2GB", 2 * 10**9)]
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


def test_formats() -> None:
    assert [format_bytes(n) for n in (12, 8 << 20, 5 << 30)] == ["12 B", "8.0 MiB", "5.00 GiB"]
    assert [format_rate(n) for n in (5e6, 2.5e10)] == ["5.0 Mbit/s", "25.00 Gbit/s"]
    assert [format_seconds(n) for n in (1e-4, 0.0852, 12.34)] == ["100 us", "85.2 ms", "12.34 s"]
