"""JSON that every reader accepts, also with NaN and infinity."""

from __future__ import annotations

import json
import math

from thalweg.ui import strict_json


def test_numbers_that_are_not_finite_are_words_at_any_depth() -> None:
    value = {"a": math.nan, "b": [math.inf, {"c": -math.inf}], "d": (1.5, "NaN"), "e": None}
    text = strict_json.dumps(value)
    assert json.loads(text) == {"a": "NaN", "b": ["Infinity", {"c": "-Infinity"}], "d": [1.5, "NaN"], "e": None}


def test_everything_else_is_as_python_writes_it() -> None:
    value = {"b": 1, "a": [True, None, "ü", 0.1]}
    assert strict_json.dumps(value, sort_keys=True, indent=2) == json.dumps(value, sort_keys=True, indent=2)


def test_words_are_numbers_where_one_is_expected() -> None:
    assert math.isnan(strict_json.number("NaN"))
    assert strict_json.number("-Infinity") == -math.inf
    assert [strict_json.number(value) for value in ("nan", 1, None, "x")] == ["nan", 1, None, "x"]
