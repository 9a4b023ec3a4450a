"""Reads JSON from peers and records, with limits on bytes, depth and the digits of integers. Numbers must be finite."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any, Final

from pydantic_core import from_json

# Maximum size of a text in bytes, if the caller gives no other limit. It is the limit of a head on the wire.
MOST_BYTES: Final = 1 << 20
# Maximum number of lists and objects around a value. A test checks that pydantic's parser has the same limit.
MOST_DEPTH: Final = 200
# Maximum number of digits of an integer. Every integer within this limit can be converted to a float.
MOST_DIGITS: Final = 40
_BEYOND: Final = 10**MOST_DIGITS
# Finds a number that may be too large. Text within quotes may match too, so after a match all values are checked.
_MAYBE_TOO_LARGE: Final = re.compile(rb"[0-9]{%d}|[eE]\+?[0-9]{3}" % (MOST_DIGITS + 1))


class JsonError(ValueError):
    """A text is not JSON within the limits. The error gives the reason, without repeating the text."""


def read(text: bytes | str, *, most: int = MOST_BYTES, finite: bool = True) -> Any:
    """Return the value of a JSON text of at most ``most`` bytes of UTF-8.

    It may be nested at most ``MOST_DEPTH`` levels deep, and integers may have at most ``MOST_DIGITS`` digits. NaN and
    infinities are refused, unless ``finite`` is false: older records contain them. Raises JsonError.
    """
    try:
        data = text.encode() if isinstance(text, str) else text
        if len(data) > most:
            raise JsonError(f"it has {len(data)} bytes, and may have {most}")
        value = from_json(data, allow_inf_nan=not finite)
    except JsonError:
        raise
    except ValueError as error:
        raise JsonError(f"it is no JSON: {error}") from None
    if _MAYBE_TOO_LARGE.search(data):
        _check_numbers(value, finite=finite)
    return value


def read_object(text: bytes | str, *, most: int = MOST_BYTES, finite: bool = True) -> dict[str, Any]:
    """Return the value of a JSON text that is an object. Raises JsonError."""
    value = read(text, most=most, finite=finite)
    if not isinstance(value, dict):
        raise JsonError("it is no JSON object")
    return value


def _check_numbers(value: Any, *, finite: bool) -> None:
    """Raise JsonError if a number within ``value`` is infinite or has too many digits."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
        elif finite and isinstance(one, float) and not isfinite(one):
            raise JsonError("a number is too large for a float")
        elif isinstance(one, int) and not -_BEYOND < one < _BEYOND:
            raise JsonError(f"an integer has more than {MOST_DIGITS} digits")
