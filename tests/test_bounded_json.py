"""Reading any JSON of peers and records stays within bounds."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg import bounded_json
from thalweg.bounded_json import MOST_BYTES, MOST_DEPTH, MOST_DIGITS, JsonError

_LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.recursive(
    _LEAVES | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)


def _nested(depth: int) -> str:
    return "[" * depth + "1" + "]" * depth


@given(_VALUES)
def test_what_json_writes_is_read(value: object) -> None:
    text = json.dumps(value)
    assert bounded_json.read(text) == bounded_json.read(text.encode()) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_bad(data: bytes) -> None:
    try:
        value = bounded_json.read(data)
    except JsonError:
        return
    assert json.loads(data) == value


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 100_000, _nested(MOST_DEPTH + 1)])
def test_depth_is_bounded(deep: str) -> None:
    with pytest.raises(JsonError, match="recursion limit"):
        bounded_json.read(deep)


def test_depth_up_to_the_bound_is_read() -> None:
    assert json.dumps(bounded_json.read(_nested(MOST_DEPTH))) == _nested(MOST_DEPTH)


@pytest.mark.parametrize("sign", ["", "-"])
def test_digits_of_integers_are_bounded(sign: str) -> None:
    most = sign + "9" * MOST_DIGITS
    assert bounded_json.read(most) == int(most)
    for digits in (MOST_DIGITS + 1, 4300, 5000):
        with pytest.raises(JsonError, match=r"digits|out of range"):
            bounded_json.read('{"round": [' + sign + "1" * digits + "]}")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1E+400", "1" * 400 + ".0"])
def test_numbers_are_finite(number: str) -> None:
    with pytest.raises(JsonError):
        bounded_json.read(f'{{"loss": [1.0, {number}]}}')


def test_text_that_looks_like_a_large_number_is_read() -> None:
    value = {"token": "1e999" * 30, "digits": "7" * 5000, "small": 1e-300, "large": 1e300}
    assert bounded_json.read(json.dumps(value)) == value


@pytest.mark.parametrize("text", ["", "{", "1 2", '"\\ud800"', b"\xff", '"\ud800"', "\ufeff1"])
def test_what_is_no_json_is_bad(text: str | bytes) -> None:
    with pytest.raises(JsonError):
        bounded_json.read(text)


def test_size_is_bounded_before_anything_is_read() -> None:
    with pytest.raises(JsonError, match=f"it has {MOST_BYTES + 1} bytes, and may have {MOST_BYTES}"):
        bounded_json.read(b"[" * (MOST_BYTES + 1))
    assert bounded_json.read(b" " * 9 + b"1", most=10) == 1
    with pytest.raises(JsonError, match="it has 11 bytes, and may have 10"):
        bounded_json.read(b" " * 10 + b"1", most=10)


@pytest.mark.parametrize("text", ["[]", "1", "null", '"x"'])
def test_an_object_is_asked_for(text: str) -> None:
    assert bounded_json.read_object('{"a": 1}') == {"a": 1}
    with pytest.raises(JsonError, match="no JSON object"):
        bounded_json.read_object(text)
