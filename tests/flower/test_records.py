"""Any records of Flower are the same after their transfer as a head and tensors. Malformed ones are refused."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from thalweg.flower import records
from thalweg.flower.arrays import Folded, View
from thalweg.flower.records import HeadError
from thalweg.tasks import Tensors

KINDS = ("float16", "float32", "float64", "int8", "int64", "uint16", "bool", "complex64", ">f4", "datetime64[s]", "S3")
names = st.text(max_size=8)
integers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False)
shapes = arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """Draw arrays of any element type and memory order, and some that are not in the ``.npy`` format."""
    if draw(st.booleans()) and draw(st.booleans()):
        return Array(draw(names), draw(shapes), draw(st.sampled_from(["", "xgboost"])), draw(st.binary(max_size=32)))
    values = np.empty(draw(shapes), draw(st.sampled_from(KINDS)))
    raw = draw(st.binary(min_size=values.nbytes, max_size=values.nbytes))
    values = np.frombuffer(raw, values.dtype).reshape(values.shape) if values.size else values
    array = Array(np.asarray(values, order=draw(st.sampled_from("CF"))))
    if draw(st.booleans()):  # legacy records have neither type nor shape
        array = Array("", (), array.stype, array.data)
    return array


def lists(one: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return one | st.lists(one, max_size=3)


metrics = st.dictionaries(names, lists(integers) | lists(floats), max_size=3).map(MetricRecord)
values = lists(integers) | lists(floats) | lists(names) | lists(st.booleans()) | lists(st.binary(max_size=2000))
configs = st.dictionaries(names, values, max_size=3).map(ConfigRecord)
array_records = st.dictionaries(names, arrays(), max_size=3).map(ArrayRecord)
contents = st.dictionaries(names, metrics | configs | array_records, max_size=3).map(RecordDict)


def travelled(content: RecordDict) -> RecordDict:
    """Return the content that the receiver gets."""
    packed = records.pack(content)
    tensors = packed.tensors()
    return records.unpack(json.loads(json.dumps(packed.records)), Tensors(tensors) if tensors else {})


def fields(array: Array) -> tuple[Any, ...]:
    return array.dtype, tuple(array.shape), array.stype, array.data


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, ArrayRecord):
        return list(ours) == list(theirs) and all(
            (one.dtype, tuple(one.shape), one.stype, one.data)
            == (other.dtype, tuple(other.shape), other.stype, other.data)
            for one, other in zip(ours.values(), theirs.values(), strict=True)
        )
    types = [(name, type(one)) for name, one in ours.items()] == [(name, type(one)) for name, one in theirs.items()]
    return types and dict(ours) == dict(theirs)


@settings(max_examples=150)
@given(contents)
def test_any_content_comes_out_as_it_went_in(content: RecordDict) -> None:
    received_content = travelled(content)
    assert list(received_content) == list(content), "in the same order"
    for key, record in content.items():
        assert type(received_content[key]) is type(record)
        assert same(record, received_content[key])


def test_metrics_that_are_no_numbers_travel_too() -> None:
    received_content = travelled(RecordDict({"m": MetricRecord({"a": math.nan, "b": [math.inf, -math.inf]})}))["m"]
    assert math.isnan(received_content["a"])
    assert received_content["b"] == [math.inf, -math.inf]


def test_numbers_travel_as_tensors_and_all_else_as_bytes() -> None:
    record = ArrayRecord()
    record["w"] = Array(np.arange(6, dtype=np.float32).reshape(2, 3))
    record["across"] = Array(np.asfortranarray(np.ones((2, 3))))
    record["trees"] = Array("", (), "xgboost", b"{}")
    record["big-endian"] = Array(np.ones(2, ">f4"))
    body = records.pack(RecordDict({"arrays": record})).body
    assert [(one.dtype.name, one.shape) for one in body[:2]] == [("float32", (2, 3)), ("float64", (3, 2))]
    assert all(one.dtype == np.uint8 for one in body[2:])
    assert all(one.flags.c_contiguous for one in body)


def test_bytes_that_numpy_would_write_otherwise_are_kept_as_they_are() -> None:
    plain = Array(np.ones(3, np.float32))
    padded = plain.data + b"behind the values"
    record = ArrayRecord()
    record["padded"] = Array(plain.dtype, plain.shape, plain.stype, padded)
    record["cut"] = Array(plain.dtype, plain.shape, plain.stype, plain.data[:-1])
    record["pickle"] = Array("object", (1,), plain.stype, _pickled())
    received_content = travelled(RecordDict({"arrays": record}))["arrays"]
    assert [one.data for one in received_content.values()] == [one.data for one in record.values()]
    assert not any(isinstance(one, View) for one in received_content.values())


def _pickled() -> bytes:
    from io import BytesIO

    stream = BytesIO()
    np.save(stream, np.array([None]), allow_pickle=True)
    return stream.getvalue()


def test_a_view_is_an_array_like_any_other() -> None:
    original = Array(np.arange(4, dtype=np.int32))
    (view,) = travelled(RecordDict({"a": ArrayRecord({"w": original})}))["a"].values()
    assert isinstance(view, View)
    assert view == original
    assert original == view
    first = view.numpy()
    first += 1
    np.testing.assert_array_equal(view.numpy(), np.arange(4), "each call gives a fresh array")
    assert pickle.loads(pickle.dumps(view)) == original  # noqa: S301 - of this test
    assert ArrayRecord({"w": view})["w"] == original, "Flower rebuilds it from its fields"
    other = Array(np.zeros(2))
    view.data = other.data
    np.testing.assert_array_equal(view.numpy(), np.zeros(2))


def test_a_folded_array_raises_with_that_reason() -> None:
    folded = Folded("float32", [3])
    assert (folded.dtype, folded.shape) == ("float32", (3,))
    for look in (lambda: folded.data, folded.numpy, lambda: records.pack(RecordDict({"a": _with(folded)}))):
        with pytest.raises(RuntimeError, match="--fold off"):
            look()


def _with(array: Array) -> ArrayRecord:
    record = ArrayRecord()
    record["w"] = array
    return record


def test_a_long_head_becomes_a_tensor() -> None:
    content = RecordDict({"names": ConfigRecord({"words": ["word"] * 100_000})})
    packed = records.pack(content)
    assert isinstance(packed.records, int)
    assert len(json.dumps(packed.records)) < 10
    assert travelled(content) == content


TENSORS: dict[str, npt.NDArray[Any]] = {"0": np.ones(3, np.float32), "1": np.zeros(4, np.uint8)}


@pytest.mark.parametrize(
    "head",
    [
        None,
        "records",
        [1],
        [["a", "arrays"]],
        [["a", "code", []]],
        [["a", "arrays", [["w", "along", 7]]]],
        [["a", "arrays", [["w", "along", True]]]],
        [["a", "arrays", [["w", "along", "0"]]]],
        [["a", "arrays", [["w", "sideways", 0]]]],
        [["a", "arrays", [["w", "along", 0, 5, [3]]]]],
        [["a", "arrays", [["w", "along", 0, "float32", ["3"]]]]],
        [["a", "arrays", [["w", "bytes", 0, "", [], ""]]]],
        [["a", "arrays", [[1, "along", 0]]]],
        [["a", "folded", [["w", "folded", "float32", 3]]]],
        [["a", "metrics", [["x", "text"]]]],
        [["a", "metrics", [["x", None]]]],
        [["a", "config", [["x", {"bytes": "*"}]]]],
        [["a", "config", [["x", {"tensor": 0}]]]],
        [["a", "config", [["x", {"eval": "1"}]]]],
        [["a", "config", [["x", {"bytes": "", "tensor": 0}]]]],
        [[1, "metrics", []]],
        1,
    ],
)
def test_a_head_that_pack_does_not_make_is_refused(head: Any) -> None:
    with pytest.raises(HeadError):
        records.unpack(head, TENSORS)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)
items = st.lists(st.tuples(names, st.sampled_from(["arrays", "metrics", "config"]), json_values), max_size=3)
# Values that may follow the name and the kind in an array's entry: valid ones, and ones that are almost valid.
fits = st.sampled_from(
    [0, 1, 2, -1, 2**70, True, None, "float32", "S3", "numpy.ndarray", [], [3], [0], [2**70, 0], [-1]]
)
entries = st.tuples(
    names, st.sampled_from(["along", "across", "empty", "bytes", "folded"]), st.lists(fits, max_size=4)
).map(lambda entry: [entry[0], entry[1], *entry[2]])
array_items = st.tuples(names, st.just("arrays"), st.lists(entries, max_size=3)).map(list)


@settings(max_examples=300)
@given(json_values | items.map(lambda found: [list(one) for one in found]) | st.lists(array_items, max_size=2))
def test_no_head_does_more_than_fail(head: Any) -> None:
    try:
        unpacked = records.unpack(head, TENSORS)
    except HeadError:
        return
    assert isinstance(unpacked, RecordDict)
    packed = records.pack(unpacked) if not _has_folded(unpacked) else None
    assert packed is None or sum(one.nbytes for one in packed.body) <= 1 << 20, "it makes no more of what came"


def _has_folded(content: RecordDict) -> bool:
    arrays = (one for record in content.values() if isinstance(record, ArrayRecord) for one in record.values())
    return any(isinstance(one, Folded) for one in arrays)


def test_a_head_that_is_nested_deeply_is_refused() -> None:
    nested: Any = 1
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(HeadError):
        records.unpack([["a", "config", [["x", nested]]]], TENSORS)
