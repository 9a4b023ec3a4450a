"""Flower's arrays without copies. The values of a ``View`` lie in an arena; those of a ``Folded`` are in the mean.

``values_of`` returns an array's values without a copy. ``averaging`` lets Flower's own mean do without copies too.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, RecordDict

from thalweg.tensors.arena import ARRAY_TYPES

if TYPE_CHECKING:
    from thalweg.tasks import Tensors

Values: TypeAlias = npt.NDArray[Any]

NUMPY: Final = "numpy.ndarray"
_MAGIC: Final = b"\x93NUMPY"
#: Maximum number of bytes that are read of a ``.npy`` header. The header of an array with 16 dimensions is shorter.
_HEADER: Final = 4096
#: Maximum number of dimensions of an array that travels as a tensor.
MOST_DIMENSIONS: Final = 16


class View(Array):
    """An array whose values lie in memory, such as an arena. It makes ``.npy`` bytes only when ``data`` is read.

    ``numpy()`` copies the values, because Flower's method returns a new array each time. ``location`` names the
    ``Tensors`` and the tensor in it that hold the values, so that they can be sent again without a copy.
    """

    def __init__(
        self,
        values: Values,
        kept: tuple[str, tuple[int, ...]] | None = None,
        location: tuple[Tensors, str] | None = None,
    ) -> None:
        dtype, shape = (str(values.dtype), values.shape) if kept is None else kept
        self.__dict__.update(_values=values, _location=location, dtype=dtype, shape=tuple(shape), stype=NUMPY)

    @property
    def values(self) -> Values | None:
        """The values, which must not be changed; None once ``data`` was replaced."""
        values: Values | None = self.__dict__["_values"]
        return values

    @property
    def location(self) -> tuple[Tensors, str] | None:
        """The ``Tensors`` and the tensor's name that hold the values; None if they do not lie in any."""
        location: tuple[Tensors, str] | None = self.__dict__["_location"]
        return location

    def numpy(self) -> Values:
        values = self.values
        if values is None:
            made: Values = super().numpy()
            return made
        # Flower's mean only reads the array, so it gets a view without a copy.
        shown: Values = values.view() if _averaging.now else values.copy(order="K")
        shown.flags.writeable = not _averaging.now
        return shown

    @property
    def data(self) -> bytes:
        values = self.values
        if values is None:
            content: bytes = self.__dict__["_data"]
            return content
        buffer = BytesIO()
        np.save(buffer, values, allow_pickle=False)
        return buffer.getvalue()

    @data.setter
    def data(self, content: bytes) -> None:
        self.__dict__.update(_data=content, _values=None, _location=None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        return (self.dtype, tuple(self.shape), self.stype) == (other.dtype, tuple(other.shape), other.stype) and (
            self.data == other.data
        )

    __hash__ = None  # type: ignore[assignment]


class _Averaging(threading.local):
    """Each thread's flag: whether it is computing Flower's own mean of arrays."""

    now = False


_averaging: Final = _Averaging()
_INIT: Final = Array.__init__
_FROM_ARRAYS: Final = vars(ArrayRecord)["from_array_dict"]


@contextmanager
def averaging() -> Iterator[None]:
    """Let Flower's own mean work without copies: it reads ``View`` arrays in place, and its sums become ``View`` too.

    The sums are new arrays that nothing else refers to, so they need no ``.npy`` bytes. Other threads, such as nodes in
    this process, see no difference.
    """
    _averaging.now = True
    Array.__init__ = _init  # type: ignore[method-assign]
    ArrayRecord.from_array_dict = classmethod(_from_arrays)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        _averaging.now = False
        Array.__init__ = _INIT  # type: ignore[method-assign]
        ArrayRecord.from_array_dict = _FROM_ARRAYS  # type: ignore[method-assign]


def _init(self: Array, *args: Any, **arguments: Any) -> None:
    """Make an array that is a sum of the mean a ``View``, without a copy."""
    if (
        _averaging.now
        and not arguments
        and len(args) == 1
        and isinstance(args[0], np.ndarray)
        and travels(args[0].dtype)
    ):
        self.__class__ = View
        View.__init__(self, args[0])  # type: ignore[arg-type]
    else:
        _INIT(self, *args, **arguments)


def _from_arrays(cls: type[ArrayRecord], /, array_dict: dict[str, Array], **arguments: Any) -> ArrayRecord:
    """Put sums of the mean into a record, without a copy."""
    if not (_averaging.now and all(isinstance(array, View) for array in array_dict.values())):
        made: ArrayRecord = _FROM_ARRAYS.__get__(None, cls)(array_dict, **arguments)
        return made
    record = ArrayRecord()
    for name, array in array_dict.items():
        record[name] = array
    return record


class Folded(Array):
    """Stands for an array whose values were folded into the mean on arrival and were not kept."""

    def __init__(self, dtype: str, shape: Sequence[int]) -> None:
        self.__dict__.update(dtype=dtype, shape=tuple(shape), stype=NUMPY)

    @property
    def data(self) -> bytes:
        raise RuntimeError(
            "this client's array was added to the mean when it came, and is gone; run with --fold off to keep each"
        )

    @data.setter
    def data(self, content: bytes) -> None:
        raise AttributeError("a folded array cannot be replaced")

    def numpy(self) -> Values:
        self.data  # noqa: B018 - it raises
        raise AssertionError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Folded) and (self.dtype, self.shape) == (other.dtype, other.shape)

    __hash__ = None  # type: ignore[assignment]


def values_of(array: Array) -> Values | None:
    """Return an array's values without a copy, or None if the array must travel as bytes.

    It must travel as bytes if its element type does not travel as a tensor, or if NumPy would write other ``.npy``
    bytes.
    """
    if isinstance(array, View) and array.values is not None:
        return array.values
    data = array.data
    if array.stype != NUMPY or not data.startswith(_MAGIC):
        return None
    try:
        values, header = _parsed(data)
    except (ValueError, SyntaxError, TypeError, EOFError, UnicodeDecodeError):
        return None
    fits = travels(values.dtype) and values.ndim <= MOST_DIMENSIONS
    return values if fits and data.startswith(header) else None


def size_of(array: Array) -> int:
    """Return about how many bytes an array has in memory, without making its ``.npy`` bytes."""
    if isinstance(array, Folded):
        return 0
    values = array.values if isinstance(array, View) else None
    return len(array.data) if values is None else values.nbytes


def bytes_of(content: RecordDict) -> int:
    """Return about how many bytes the arrays of a message have in memory."""
    records = (record for record in content.values() if isinstance(record, ArrayRecord))
    return sum(size_of(array) for record in records for array in record.values())


def travels(dtype: np.dtype[Any]) -> bool:
    """Return whether an element type travels: numbers in this machine's byte order, and booleans."""
    return dtype.isnative and dtype.name in ARRAY_TYPES


def why_unreadable(data: bytes) -> str | None:
    """Return why ``Array.numpy`` could not read ``.npy`` bytes, or None.

    It allocates no memory for the sizes in the header, which a peer may have made up.
    """
    if not data.startswith(_MAGIC):
        return "it is no .npy file"
    stream = BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            return f"its header is of version {version}"
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    except (ValueError, SyntaxError, TypeError, EOFError, RecursionError, MemoryError) as error:
        return f"its header cannot be read: {type(error).__name__}"
    if dtype.hasobject:
        return "it holds objects"
    if math.prod(shape) * dtype.itemsize > len(data) - stream.tell():
        return "it has fewer bytes than its header says"
    return None


def _parsed(data: bytes) -> tuple[Values, bytes]:
    """Return the values of ``.npy`` bytes, and the header that NumPy would write for them.

    Raises ValueError, and what NumPy raises for a damaged header.
    """
    stream = BytesIO(data[:_HEADER])
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("its header is not of version 1.0")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.hasobject:
        raise ValueError("it holds objects")
    start, count = stream.tell(), math.prod(shape)
    if len(data) != start + count * dtype.itemsize:
        raise ValueError("its bytes are not as many as its header says")
    flat: Values = np.frombuffer(data, dtype, count, start) if count else np.empty(0, dtype)
    values = flat.reshape(shape, order="F" if fortran else "C")
    written = BytesIO()
    np.lib.format.write_array_header_1_0(written, np.lib.format.header_data_from_array_1_0(values))
    return values, written.getvalue()
