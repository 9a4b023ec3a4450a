"""Turns settings into words with units: the keys of links and of stress, and the limits of a link."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from thalweg.ui.units import format_bytes, format_rate, format_seconds


def percent(value: float) -> str:
    """Return a fraction as percent, such as ``93.10 %``. Small fractions get three significant digits."""
    return f"{100 * value:.2f} %" if value == 0 or value >= 0.001 else f"{100 * value:.3g} %"


def shortly(value: float) -> str:
    """Return a number with at most four significant digits."""
    return f"{value:.4g}"


def number_of(number: int, word: str) -> str:
    """Return a number with its word, such as ``1 client`` or ``2 clients``."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """Return names as ``'a', 'b' and 3 more``; at most ``FEW`` are named."""
    few = ", ".join(map(repr, names[:FEW]))
    return few if len(names) <= FEW else f"{few} and {len(names) - FEW} more"


# Maximum number of names in a sentence.
FEW: Final = 6
SHOWN: Final[Mapping[str, Callable[[float], str]]] = {
    "rate": format_rate,
    "delay": format_seconds,
    "jitter": format_seconds,
    "rtt": format_seconds,
    "loss": percent,
    "reorder": percent,
    "duplicate": percent,
    "queue": format_bytes,
    "queue_bytes": format_bytes,
}


def exactly(text: str) -> str:
    """Return a number with its unit, without trailing zeros after the decimal point: ``40.0 ms`` as ``40 ms``."""
    number, space, unit = text.partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number}{space}{unit}"


def phrase(of: Mapping[str, object]) -> str:
    """Return a table of settings as words, such as ``rate 60 Mbit/s, delay 20 ms``."""
    return ", ".join(f"{name.replace('_', ' ')} {_value(name, value)}" for name, value in of.items())


def _value(name: str, value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return exactly(SHOWN.get(name, shortly)(value))
    if isinstance(value, dict):
        return f"({phrase(value)})"
    if isinstance(value, list):
        return " to ".join(_value(name, inner) for inner in value)
    return value if isinstance(value, str) else json.dumps(value)


def shape(nominal: Mapping[str, object]) -> str:
    """Return the configured limits of a link in a few words."""
    return phrase({name: value for name, value in nominal.items() if value not in (None, False, 0)}) or "no limits"
