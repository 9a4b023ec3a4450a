"""Encodes Flower's records as a JSON head and a body of tensors, without pickle and Flower's own serialisation.

An array whose bytes are exactly what NumPy's ``.npy`` writer makes travels as a tensor of its element type. Any other
array travels as bytes, with its four fields unchanged: one of another ``stype``, or of an element type that does not
travel. A received head is checked against the tensors that came with it: no size or type in it is trusted.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from thalweg import bounded_json
from thalweg.flower.arrays import MOST_DIMENSIONS, NUMPY, Folded, Values, View, values_of
from thalweg.tensors.arena import ARRAY_TYPES

#: Maximum length of a ConfigRecord's bytes value in the head; a longer value becomes a tensor.
INLINE: Final = 1024
#: Maximum size in bytes of the JSON about records in the head; longer JSON becomes a tensor.
LONGEST_HEAD: Final = 256 << 10
#: Maximum size in bytes of received JSON about records; longer JSON is refused.
LONGEST_RECORDS: Final = 16 << 20
#: Numbers that JSON does not have, as Python writes them.
NOT_FINITE: Final = ("nan", "inf", "-inf")


class HeadError(ValueError):
    """A peer sent a head that does not describe records."""


@dataclass
class Packed:
    """Encoded records: JSON for the head, and the tensors of the body."""

    records: Any
    body: list[Values] = field(default_factory=list)
    #: Where each tensor's bytes came from: immutable bytes or values, or a location in a ``Tensors``. If the next
    #: message has the same origin, its tensor is the same.
    sources: list[Any] = field(default_factory=list)
    #: For each array that lies row by row in memory, and so travels as it is: its name, and its tensor's number.
    arrays: dict[str, int] = field(default_factory=dict)

    def tensors(self) -> dict[str, Values]:
        """Return the body's tensors by their names on the wire, which are their numbers."""
        return {str(index): values for index, values in enumerate(self.body)}

    def add(self, values: Values, source: Any) -> int:
        """Put a tensor into the body and return its number."""
        self.body.append(values)
        self.sources.append(source)
        return len(self.body) - 1


def pack(content: RecordDict, folded: Mapping[str, Values] | None = None) -> Packed:
    """Encode records. With ``folded``, arrays travel elsewhere: only element type and shape of each are encoded."""
    packed = Packed([])
    for key, record in content.items():
        if isinstance(record, ArrayRecord):
            packed.records.append([key, "arrays", _arrays(record, packed, folded)])
        elif isinstance(record, MetricRecord):
            packed.records.append([key, "metrics", _coded_items(record, packed)])
        else:
            packed.records.append([key, "config", _coded_items(record, packed)])
    text = json.dumps(packed.records).encode()
    if len(text) > LONGEST_HEAD:
        packed.records = packed.add(np.frombuffer(text, np.uint8), None)
    return packed


def _arrays(record: ArrayRecord, packed: Packed, folded: Mapping[str, Values] | None) -> list[Any]:
    items: list[Any] = []
    for name, array in record.items():
        if folded is not None:
            items.append([name, "folded", str(folded[name].dtype), list(folded[name].shape)])
            continue
        fields = [array.dtype, list(array.shape), array.stype]
        values = values_of(array)
        if values is None:
            number = packed.add(np.frombuffer(array.data, np.uint8), array.data) if array.data else None
            items.append([name, "bytes", number, *fields])
            continue
        if not values.size:  # encoded without a tensor, since a tensor cannot have 0 bytes
            items.append([name, "empty", values.dtype.name, list(values.shape), *fields[:2]])
            continue
        source = (array.location or array.values) if isinstance(array, View) else array.data
        # A tensor lies row by row in memory. An array that lies column by column is sent as its transpose.
        across = not values.flags.c_contiguous
        number = packed.add(values.T if across else values, source)
        if not across:
            packed.arrays[name] = number
        plain = fields == [str(values.dtype), list(values.shape), NUMPY]
        items.append([name, "across" if across else "along", number, *([] if plain else fields[:2])])
    return items


def _coded_items(record: MetricRecord | ConfigRecord, packed: Packed) -> list[Any]:
    return [[name, _coded(value, packed)] for name, value in record.items()]


def _coded(value: Any, packed: Packed) -> Any:
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no such numbers
        return {"float": str(value)}
    if isinstance(value, bytes):
        if len(value) > INLINE:
            return {"tensor": packed.add(np.frombuffer(value, np.uint8), value)}
        return {"bytes": base64.b64encode(value).decode()}
    return [_coded(one, packed) for one in value] if isinstance(value, list) else value


def housed(record: ArrayRecord) -> ArrayRecord:
    """Copy a record's arrays into one buffer, from which they are sent without a copy; return a record of these.

    Returns the record itself if one of its arrays is empty, or does not travel as a tensor that lies row by row.
    """
    from thalweg.tasks import Tensors

    values = {str(at): values_of(array) for at, array in enumerate(record.values())}
    fits = {at: one for at, one in values.items() if one is not None and one.size and one.flags.c_contiguous}
    if not fits or len(fits) < len(values):
        return record
    tensors = Tensors(fits)
    made = ArrayRecord()
    for (name, array), at in zip(record.items(), fits, strict=True):
        made[name] = View(tensors[at], (array.dtype, tuple(array.shape)), (tensors, at))
    return made


def unpack(records: Any, tensors: Mapping[str, Values], *, folded: bool = False) -> RecordDict:
    """Decode the records of a peer's message, with the message's ``tensors``.

    With ``folded`` all arrays must be folded, so that there are no ``tensors``; else none may be folded. Raises
    HeadError for anything that ``pack`` does not make.
    """
    try:
        if isinstance(records, int):
            records = bounded_json.read(_bytes(tensors, records), most=LONGEST_RECORDS)
        content = RecordDict()
        for key, kind, items in records:
            make = _MAKERS[kind]
            content[key] = make(items, tensors)
            if isinstance(content[key], ArrayRecord) and any(
                isinstance(array, Folded) != folded for array in content[key].values()
            ):
                raise ValueError("its arrays are folded" if not folded else "an array is not folded")
    except (TypeError, ValueError, LookupError, OverflowError, RecursionError) as error:
        raise HeadError(f"the head does not describe records: {error}") from error
    return content


def _array_record(items: Any, tensors: Mapping[str, Values]) -> ArrayRecord:
    record = ArrayRecord()
    for name, kind, *rest in items:
        if kind == "folded":
            dtype, shape = rest
            record[name] = Folded(_text(dtype), _shape(shape))
        elif kind == "bytes":
            number, dtype, shape, stype = rest
            data = b"" if number is None else _bytes(tensors, number)
            record[name] = Array(_text(dtype), _shape(shape), _text(stype), data)
        elif kind == "empty":
            element, shape, *fields = rest
            record[name] = View(_empty(element, shape), (_text(fields[0]), _shape(fields[1])))
        else:
            number, *fields = rest
            values = tensors[str(_number(number))]
            if not isinstance(values, np.ndarray):  # a peer's head may claim that they are PyTorch tensors
                raise TypeError(f"tensor {number} is no array")
            kept = (_text(fields[0]), _shape(fields[1])) if fields else None
            record[name] = View({"along": values, "across": values.T}[kind], kept)
    return record


def _empty(element: Any, shape: Any) -> Values:
    """Return an array without elements. Raises ValueError if its shape has elements or its type does not travel."""
    lengths = _shape(shape)
    if 0 not in lengths or element not in ARRAY_TYPES or len(lengths) > MOST_DIMENSIONS:
        raise ValueError("it is no array of no elements")
    return np.empty(lengths, element)


def _metric_record(items: Any, tensors: Mapping[str, Values]) -> MetricRecord:
    return MetricRecord({name: _decoded(value, tensors) for name, value in items})


def _config_record(items: Any, tensors: Mapping[str, Values]) -> ConfigRecord:
    return ConfigRecord({name: _decoded(value, tensors) for name, value in items})


_Record: TypeAlias = ArrayRecord | MetricRecord | ConfigRecord
_Maker: TypeAlias = Callable[[Any, Mapping[str, Values]], _Record]
_MAKERS: Final[Mapping[str, _Maker]] = {"arrays": _array_record, "metrics": _metric_record, "config": _config_record}


def _decoded(value: Any, tensors: Mapping[str, Values]) -> Any:
    if isinstance(value, list):
        return [_decoded(one, tensors) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, encoded),) = value.items()
    if kind == "tensor":
        return _bytes(tensors, encoded)
    if kind == "float" and encoded in NOT_FINITE:
        return float(encoded)
    if kind != "bytes":
        raise ValueError(f"{kind!r} is no kind of value")
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error


def _bytes(tensors: Mapping[str, Values], number: Any) -> bytes:
    values = tensors[str(_number(number))]
    if values.dtype != np.uint8 or values.ndim != 1:
        raise ValueError(f"tensor {number} is no bytes")
    return values.tobytes()


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no number of a tensor")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _shape(value: Any) -> tuple[int, ...]:
    lengths = tuple(_number(one) for one in value)
    if not all(0 <= one < 2**63 for one in lengths):
        raise ValueError("a length of a shape is out of range")
    return lengths
