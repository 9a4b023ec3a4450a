"""Checkpoints: the global model as a safetensors file, written from the arena without a copy of it.

A new checkpoint is written to a file beside the old one, synced to the disk, and renamed over the old one. So the old
one stays until the new one is complete.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from thalweg import bounded_json, wire
from thalweg.errors import RecordError
from thalweg.record import reading
from thalweg.record.journal import write_all
from thalweg.ui import strict_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Name, safetensors dtype, shape and first byte in the arena, as in ``Layout.tensors``.
Tensor: TypeAlias = tuple[str, str, Sequence[int], int]

BYTES: Final = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
LARGEST_HEADER: Final = 100_000_000
ROUND: Final = "thalweg_round"


@dataclass(frozen=True)
class TensorHead:
    """A tensor in the header of a safetensors file: its type, its shape, and where its bytes begin and end."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


@dataclass(frozen=True)
class Header:
    """The header of a safetensors file. ``end``: the number of its bytes in the file."""

    tensors: Mapping[str, TensorHead]
    metadata: Mapping[str, str]
    end: int


class Readable(Protocol):
    """A file open for reading: an unbuffered file of Python, or one of pyarrow."""

    def read(self, size: int = -1, /) -> bytes | None:
        """Return the next bytes."""

    def readinto(self, target: memoryview, /) -> int | None:
        """Read the next bytes into ``target``; return how many."""


def write(path: Path, tensors: Sequence[Tensor], arena: Buffer, number: int, *, record: Path | None = None) -> None:
    """Write the model in ``arena`` as the checkpoint of round ``number``.

    ``record`` is the folder of the run's record, if ``path`` is not in it. If the file cannot be written, the old
    checkpoint stays. Raises RecordError, which names it.
    """
    try:
        write_file(path, content(tensors, arena, number))
    except OSError as error:
        raise RecordError(
            f"cannot write the checkpoint of round {number} to {path}: {error.strerror}; {_last(path)}",
            f"Make room, then: thalweg run --resume {record or path.parent}",
        ) from error


def write_file(path: Path, pieces: Iterable[Buffer]) -> None:
    """Write a file atomically, even if the machine crashes. Raises OSError."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb", buffering=0) as file:
            for piece in pieces:
                write_all(file, piece)
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def content(tensors: Sequence[Tensor], arena: Buffer, number: int) -> Iterator[Buffer]:
    """Yield a checkpoint of the model in ``arena``, piece by piece, without a copy of the model."""
    header = {"__metadata__": {"format": "pt", ROUND: str(number)}, **_describe(tensors)}
    text = strict_json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    model = memoryview(arena).cast("B")
    yield from (model[_span(tensor)] for tensor in tensors)


def read(path: Path, tensors: Sequence[Tensor], arena: Buffer) -> int:
    """Read a checkpoint of the same tensors into ``arena`` and return its round. Raises RecordError."""
    try:
        with reading.opened(path) as file:
            return restore(str(path), file, os.fstat(file.fileno()).st_size, tensors, arena)
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}", "Name the folder of a run's record") from error


def restore(name: str, file: Readable, size: int, tensors: Sequence[Tensor], arena: Buffer) -> int:
    """Read a checkpoint of ``size`` bytes from ``file``, as ``read`` does. ``name`` is for errors.

    Raises RecordError, OSError.
    """
    header, expected = _header(name, file, size), _describe(tensors)
    if header.tensors != expected or size - header.end != _total(tensors):
        raise _other_model(name, header.tensors, expected)
    buffer = memoryview(arena).cast("B")
    for tensor in tensors:
        _read_into(name, file, buffer[_span(tensor)])
    return _round(name, header)


def round_of(path: Path) -> int | None:
    """Return the round of a checkpoint, or None if there is none. Raises RecordError for a damaged one."""
    if not path.exists():
        return None
    with reading.opened(path) as file:
        header = _header(str(path), file, os.fstat(file.fileno()).st_size)
    return _round(str(path), header)


def check(name: str, file: Readable, size: int) -> int:
    """Return the round of a checkpoint of ``size`` bytes. Raises RecordError if the checkpoint is not whole."""
    header = _header(name, file, size)
    if size - header.end != max((one.data_offsets[1] for one in header.tensors.values()), default=0):
        raise _damaged(name)
    return _round(name, header)


def _describe(tensors: Sequence[Tensor]) -> dict[str, TensorHead]:
    described: dict[str, TensorHead] = {}
    end = 0
    for tensor in tensors:
        name, dtype, shape, _ = tensor
        begin, end = end, end + _bytes(tensor)
        described[name] = TensorHead(dtype, tuple(shape), (begin, end))
    return described


def _bytes(tensor: Tensor) -> int:
    return prod(tensor[2]) * BYTES[tensor[1]]


def _span(tensor: Tensor) -> slice:
    return slice(tensor[3], tensor[3] + _bytes(tensor))


def _total(tensors: Sequence[Tensor]) -> int:
    return sum(map(_bytes, tensors))


def _damaged(name: str) -> RecordError:
    return RecordError(f"{name} is not a whole checkpoint", "Remove it and start the run anew")


def _header(name: str, file: Readable, size: int) -> Header:
    """Return the header of a safetensors file. Raises RecordError if it is damaged."""
    damaged = _damaged(name)
    length = int.from_bytes(file.read(8) or b"", "little")
    if not 0 < length <= min(LARGEST_HEADER, size - 8):
        raise damaged
    try:
        table = bounded_json.read_object(file.read(length) or b"", most=LARGEST_HEADER)
        metadata = wire.made(dict[str, str], table.pop("__metadata__", {}))
        return Header(wire.made(dict[str, TensorHead], table), metadata, 8 + length)
    except ValueError as error:
        raise damaged from error


def _round(name: str, header: Header) -> int:
    number = header.metadata.get(ROUND, "")
    if not number.isdecimal() or len(number) > len(str(reading.LAST_ROUND)):
        raise RecordError(f"{name} does not say of which round it is", "Name a checkpoint of a run's record")
    return int(number)


def _read_into(name: str, file: Readable, target: memoryview) -> None:
    while target:
        count = file.readinto(target)
        if not count:
            raise RecordError(f"{name} is cut short", "Remove it and start the run anew")
        target = target[count:]


def _other_model(name: str, tensors: Mapping[str, TensorHead], expected: Mapping[str, TensorHead]) -> RecordError:
    others = [tensor for tensor in {**expected, **tensors} if tensors.get(tensor) != expected.get(tensor)]
    what = f"{others[0]!r} differs" if others else "its size differs"
    return RecordError(f"{name} holds another model: {what}", "Go on with the plan that the record holds")


def _last(path: Path) -> str:
    try:
        number = round_of(path)
    except (OSError, RecordError):
        return "the earlier one is damaged"
    return "there is no earlier one" if number is None else f"the one of round {number} is there and whole"


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
