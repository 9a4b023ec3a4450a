"""Parses and formats sizes, rates and times as people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

SIZES: Final = {
    "B": 1,
    "kB": 1000,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
}
RATES: Final = {
    "bit": 1,
    "kbit": 1000,
    "mbit": 1000**2,
    "gbit": 1000**3,
    "bit/s": 1,
    "kbit/s": 1000,
    "Mbit/s": 1000**2,
    "Gbit/s": 1000**3,
    "B/s": 8,
    "kB/s": 8 * 1000,
    "MB/s": 8 * 1000**2,
    "GB/s": 8 * 1000**3,
}
TIMES: Final = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
}
# The link rates of FedComm section III.C step 5, in bit/s.
PROFILES: Final = {"3g": 5_000_000, "4g": 20_000_000, "wifi": 60_000_000}

SIZE_FORM: Final = "a whole number of bytes, or one with a unit as 8MiB (B kB MB GB KiB MiB GiB)"
RATE_FORM: Final = "bits a second as a whole number, or text with a unit as 20mbit, 20Mbit/s or 5MB/s, or 3g 4g wifi"
TIME_FORM: Final = "seconds, or text with a unit as 40ms (ns us ms s min h)"
FRACTION_FORM: Final = "a fraction as 0.01, or text in percent as 1%"
LARGEST: Final = (1 << 63) - 1
_NUMBER: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([A-Za-z/]*)", re.ASCII)


class UnexpectedValueError(ValueError):
    """A value is not of the ``expected`` form. That text completes the sentence "Give KEY as ..."."""

    def __init__(self, value: object, expected: str) -> None:
        super().__init__(f"{value!r} is not {expected}")
        self.value, self.expected = value, expected


def parse_size(text: str) -> int:
    """Return the bytes of a size such as ``8MiB``. Raises UnexpectedValueError."""
    return _parse(text, SIZES, SIZE_FORM)


def parse_rate(text: str) -> int:
    """Return the bits a second that ``text`` (such as ``20Mbit/s`` or ``3g``) means. Raises UnexpectedValueError.

    Text without a unit is refused, except 0: a user who writes ``rate=100`` hardly means bits a second.
    """
    if text.strip().isdecimal() and int(text) > 0:
        number = text.strip()
        raise UnexpectedValueError(number, f"a rate with its unit ({number} what?), as {number}mbit or {number}bit")
    return PROFILES[text] if text in PROFILES else _parse(text, RATES, RATE_FORM)


def parse_seconds(text: str) -> float:
    """Return the seconds that ``text`` (such as ``40ms``) means. Raises UnexpectedValueError."""
    return float(_number(text, TIMES, TIME_FORM))


def parse_fraction(text: str) -> float:
    """Return the fraction that ``text`` (such as ``1%`` or ``0.01``) means. Raises UnexpectedValueError."""
    percent = text.strip().endswith("%")
    return float(_number(text.strip().removesuffix("%"), {}, FRACTION_FORM) / (100 if percent else 1))


def _parse(text: str, units: Mapping[str, int], form: str) -> int:
    value = _number(text, units, form)
    if value.denominator != 1 or value > LARGEST:
        raise UnexpectedValueError(text, form)
    return int(value)


def _number(text: str, units: Mapping[str, int] | Mapping[str, Fraction], form: str) -> Fraction:
    """Return the exact value of ``text``: with a float, 1.005 kB would not be a whole number of bytes."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None or (match[2] and match[2] not in units):
        raise UnexpectedValueError(text, form)
    return Fraction(match[1]) * (units[match[2]] if match[2] else 1)


def format_bytes(count: float) -> str:
    """Return a size in binary units, such as ``8.0 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def format_rate(bits: float) -> str:
    """Return bits a second in decimal units, such as ``20.0 Mbit/s``."""
    for unit in ("bit/s", "kbit/s", "Mbit/s"):
        if bits < 1000:
            return f"{bits:.1f} {unit}"
        bits /= 1000
    return f"{bits:.2f} Gbit/s"


def format_seconds(seconds: float) -> str:
    """Return a duration with about three figures, such as ``85.2 ms`` or ``12.3 s``."""
    if abs(seconds) < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if abs(seconds) < 1 else f"{seconds:.2f} s"
