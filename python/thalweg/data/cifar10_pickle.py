"""Reads the batches of CIFAR-10's Python version without running code that a file names.

The published batches are pickles. A pickle names the functions that rebuild its objects, so ordinary unpickling runs
any code that its author chose. This reader knows four names. It replaces them by stand-ins that only store their
arguments, and refuses all other names. So a batch contains only containers, numbers, text and one array of bytes.
"""

from __future__ import annotations

import io
import pickle
import struct
from typing import Final

import numpy as np

from thalweg.data.dataset import CHANNELS, SIDE, Images, Labels
from thalweg.errors import DataError

PIXELS: Final = CHANNELS * SIDE * SIDE
CLASSES: Final = 10
HINT: Final = "Fetch CIFAR-10's Python version again, or use its binary version"
DAMAGED: Final = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)


def read_python_batch(content: bytes, where: str) -> tuple[Images, Labels]:
    """Decode one batch into images (n, 3, 32, 32) uint8 and labels (n,) int64.

    Raises DataError if it is damaged, names anything but a byte array, or holds labels outside 0..9.
    """
    try:
        batch = _Unpickler(io.BytesIO(content)).load()
    except DAMAGED as error:
        raise DataError(f"{where} is not a CIFAR-10 batch: {error}", HINT) from error
    data, labels = (batch.get("data"), batch.get("labels")) if isinstance(batch, dict) else (None, None)
    if not isinstance(data, _ByteArray) or not isinstance(labels, list):
        raise DataError(f"{where} lacks the array 'data' or the list 'labels'", HINT)
    if data.shape != (len(labels), PIXELS) or not labels:
        raise DataError(f"{where} has data of shape {data.shape} for {len(labels)} labels of {PIXELS} bytes each", HINT)
    if not all(type(label) is int and 0 <= label < CLASSES for label in labels):
        raise DataError(f"{where} has a label that is not one of 0..{CLASSES - 1}", HINT)
    images = np.frombuffer(data.content, dtype=np.uint8).reshape(-1, CHANNELS, SIDE, SIDE)
    return images, np.array(labels, dtype=np.int64)


class _ByteDtype:
    """Stands for numpy.dtype('uint8'). Its state (byte order and alignment) does not matter for single bytes."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        pass


class _ByteArray:
    """Stands for a numpy array of bytes. It stores shape and content, and checks that they agree."""

    __slots__ = ("content", "shape")

    def __init__(self) -> None:
        self.shape = (0, 0)
        self.content = b""

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("an array without shape, type and content")
        _, shape, dtype, column_major, content = state
        raw = content.encode("latin-1") if isinstance(content, str) else content
        if not isinstance(dtype, _ByteDtype) or column_major or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array of another type than bytes in rows")
        if not isinstance(shape, tuple) or [type(side) for side in shape] != [int, int]:
            raise pickle.UnpicklingError("an array that has not two dimensions")
        if not all(0 <= side <= len(raw) for side in shape) or shape[0] * shape[1] != len(raw):
            raise pickle.UnpicklingError("an array with more or fewer bytes than its shape says")
        self.shape, self.content = shape, raw


class _Unpickler(pickle._Unpickler):  # noqa: SLF001 - the only unpickler whose memory is bounded
    """Accepts only the names that NumPy writes for an array of bytes. Text of Python 2 is decoded as Latin-1.

    The base class is Python's unpickler in Python: the one in C allocates as much memory as a number in the file asks.
    """

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, encoding="latin-1")

    def find_class(self, module_name: str, global_name: str, /) -> object:
        stand_ins = {
            ("numpy.core.multiarray", "_reconstruct"): self._array,
            ("numpy._core.multiarray", "_reconstruct"): self._array,
            ("numpy", "ndarray"): None,
            ("numpy", "dtype"): self._dtype,
            ("_codecs", "encode"): self._encode,
        }
        if (module_name, global_name) not in stand_ins:
            raise pickle.UnpicklingError(f"it names {module_name[:40]}.{global_name[:40]}, which no batch needs")
        return stand_ins[module_name, global_name]

    def persistent_load(self, pid: object) -> object:
        raise pickle.UnpicklingError("it refers to an object outside the file")

    def _array(self, kind: object, shape: object, typecode: object) -> _ByteArray:
        return _ByteArray()

    def _dtype(self, name: object, *_: object) -> _ByteDtype:
        if name not in ("u1", b"u1"):
            raise pickle.UnpicklingError("an array of another type than bytes")
        return _ByteDtype()

    def _encode(self, text: object, encoding: object) -> bytes:
        if not isinstance(text, str) or encoding != "latin1":
            raise pickle.UnpicklingError("bytes in an unknown encoding")
        return text.encode("latin-1")
