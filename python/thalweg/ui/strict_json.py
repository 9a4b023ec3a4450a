"""JSON as RFC 8259 has it, which every reader takes: numbers that are not finite are written as words.

``NaN``, ``Infinity`` and ``-Infinity`` are no JSON, though Python writes and reads them. Here they are the strings
``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, as in the JSON of protocol buffers. ``number`` turns them back where a
number is expected.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def dumps(value: object, **settings: Any) -> str:
    """Return ``value`` as ``json.dumps`` does with ``settings``, numbers that are not finite as words."""
    try:
        return json.dumps(value, allow_nan=False, **settings)
    except ValueError:
        return json.dumps(_worded(value), allow_nan=False, **settings)


def number(value: Any) -> Any:
    """Return the number that a word stands for, and any other value as it is."""
    return WORDS.get(value, value) if isinstance(value, str) else value


def word(value: float) -> str | float:
    """Return a number, or the word for one that is not finite."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _worded(value: Any) -> Any:
    if isinstance(value, float):
        return word(value)
    if isinstance(value, dict):
        return {key: _worded(inner) for key, inner in value.items()}
    return [_worded(inner) for inner in value] if isinstance(value, (list, tuple)) else value
