"""Columns of a record's tables, and the conversion of Python's values to Arrow arrays.

This module makes arrays itself, because ``pyarrow.array`` and ``Table.from_pylist`` import pandas if it is installed.
That import costs 50 MB and half a second at the end of each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

# A row of a table, or a line of JSON that becomes one: values by the names of its columns (``record.rows``). A value
# that is missing is null in the table; other keys are left out.
Row: TypeAlias = dict[str, Any]


class Column(NamedTuple):
    """A column: its name, its Arrow type, and its meaning (times are in seconds). Any value may be null."""

    name: str
    type: str
    meaning: str


def array_of(values: Sequence[Any], kind: str) -> Any:
    """Return a pyarrow array of ``values``; None becomes null. ``kind`` is string, bool, or a number type of NumPy.

    Raises TypeError, ValueError or OverflowError for a value of another kind.
    """
    import pyarrow

    here = _bits([value is not None for value in values])
    if kind == "string":
        parts = [b"" if value is None else str.encode(value) for value in values]
        ends = np.cumsum([0, *map(len, parts)]).astype(np.int32)
        return pyarrow.Array.from_buffers(
            pyarrow.string(), len(values), [here, _buffer(ends.tobytes()), _buffer(b"".join(parts))]
        )
    known = [0 if value is None else value for value in values]
    data = _bits(known) if kind == "bool" else _buffer(np.fromiter(known, dtype=kind, count=len(known)).tobytes())
    return pyarrow.Array.from_buffers(pyarrow.type_for_alias(kind), len(values), [here, data])


def _bits(values: ArrayLike) -> Any:
    return _buffer(np.packbits(np.array(values, dtype=bool), bitorder="little").tobytes())


def _buffer(content: bytes) -> Any:
    import pyarrow

    return pyarrow.py_buffer(content)
