"""JSON as in RFC 8259, which every parser accepts: numbers that are not finite are written as strings.

RFC 8259 has no ``NaN``, ``Infinity`` and ``-Infinity``, but Python writes and reads them. Here they become the strings
``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, as in the JSON of protocol buffers. ``number`` turns them back into
numbers.
"""

from __future__ import annotations

import json
import math
from dataclasses import is_dataclass
from typing import Any, Final

from thalweg.wire import table_of

WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def dumps(value: object, **settings: Any) -> str:
    """Return ``value`` as ``json.dumps`` does with ``settings``, but with strings for numbers that are not finite.

    Dataclasses become tables (``thalweg.wire.table_of``).
    """
    try:
        return json.dumps(value, allow_nan=False, default=table_of, **settings)
    except ValueError:
        return json.dumps(_worded(value), allow_nan=False, **settings)


def number(value: Any) -> Any:
    """Return the number that a string of ``WORDS`` stands for, and any other value unchanged."""
    return WORDS.get(value, value) if isinstance(value, str) else value


def word(value: float) -> str | float:
    """Return a finite number unchanged, and the string for any other."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _worded(value: Any) -> Any:
    if isinstance(value, float):
        return word(value)
    if isinstance(value, dict):
        return {key: _worded(inner) for key, inner in value.items()}
    if is_dataclass(value):
        return _worded(table_of(value))
    return [_worded(inner) for inner in value] if isinstance(value, (list, tuple)) else value
