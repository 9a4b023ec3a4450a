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

from thalweg import _core, bounded_json, wire
from thalweg.errors import RecordError
from thalweg.record import reading
from thalweg.record.journal import write_all
from thalweg.tensors.arena import Arena
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
# Bytes that are read at once to be skipped: a file of an object store may not be able to seek.
SKIPPED: Final = 1 << 20
ROUND: Final = "thalweg_round"
# What the names of tensors begin with that are a server's state, beside the model.
STATE: Final = "thalweg_server/"


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


def write(
    path: Path,
    tensors: Sequence[Tensor],
    arena: Buffer,
    number: int,
    *,
    state: Arena | None = None,
    record: Path | None = None,
) -> None:
    """Write the model in ``arena`` as the checkpoint of round ``number``, with the ``state`` of the server's algorithm.

    ``record`` is the folder of the run's record, if ``path`` is not in it. If the file cannot be written, the old
    checkpoint stays. Raises RecordError, which names it.
    """
    try:
        write_file(path, content(tensors, arena, number, state))
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


def content(tensors: Sequence[Tensor], arena: Buffer, number: int, state: Arena | None = None) -> Iterator[Buffer]:
    """Yield a checkpoint of the model in ``arena``, and of a server's state, piece by piece, without a copy of them."""
    kept: Sequence[Tensor] = () if state is None else state.core.layout.tensors
    beside = [(STATE + name, dtype, shape, at) for name, dtype, shape, at in kept]
    header = {"__metadata__": {"format": "pt", ROUND: str(number)}, **_describe([*tensors, *beside])}
    text = strict_json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    model = memoryview(arena).cast("B")
    yield from (model[_span(tensor)] for tensor in tensors)
    if state is not None:
        import numpy as np

        rest = np.asarray(state.core).data
        yield from (rest[_span(tensor)] for tensor in beside)


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
    found = {key: head for key, head in header.tensors.items() if not key.startswith(STATE)}
    if found != expected or size - header.end != max(_end(header), _total(tensors)):
        raise _other_model(name, found, expected)
    buffer = memoryview(arena).cast("B")
    for tensor in tensors:
        _read_into(name, file, buffer[_span(tensor)])
    return _round(name, header)


def read_state(path: Path) -> Arena | None:
    """Return the state of the server's algorithm in a checkpoint; None if it has none. Raises RecordError."""
    try:
        with reading.opened(path) as file:
            return restore_state(str(path), file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}", "Name the folder of a run's record") from error


def restore_state(name: str, file: Readable, size: int) -> Arena | None:
    """Read the state in a checkpoint of ``size`` bytes, as ``read_state`` does. Raises RecordError, OSError."""
    import numpy as np

    header = _header(name, file, size)
    heads = {key: head for key, head in header.tensors.items() if key.startswith(STATE)}
    if not heads:
        return None
    layout = [(key.removeprefix(STATE), head.dtype, list(head.shape)) for key, head in heads.items()]
    model = max((head.data_offsets[1] for key, head in header.tensors.items() if key not in heads), default=0)
    if size - header.end != _end(header) or any(head.dtype not in BYTES for head in heads.values()):
        raise _damaged(name)
    arena = Arena(_core.Arena(_core.Layout(layout)))
    if _describe(arena.core.layout.tensors, model) != {key.removeprefix(STATE): head for key, head in heads.items()}:
        raise _damaged(name)
    _skip(name, file, model)
    buffer = np.asarray(arena.core).data
    for tensor in arena.core.layout.tensors:
        _read_into(name, file, buffer[_span(tensor)])
    return arena


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
    if size - header.end != _end(header):
        raise _damaged(name)
    return _round(name, header)


def _end(header: Header) -> int:
    return max((one.data_offsets[1] for one in header.tensors.values()), default=0)


def _describe(tensors: Sequence[Tensor], end: int = 0) -> dict[str, TensorHead]:
    described: dict[str, TensorHead] = {}
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


def _skip(name: str, file: Readable, count: int) -> None:
    while count:
        piece = file.read(min(count, SKIPPED))
        if not piece:
            raise RecordError(f"{name} is cut short", "Remove it and start the run anew")
        count -= len(piece)


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
