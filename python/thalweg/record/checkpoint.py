"""Checkpoints: the global model as a safetensors file, written from the arena without a copy of it.

A new checkpoint is written beside the old one, brought to the disk and renamed over it. Until then, whatever
happens, the old one is whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from io import FileIO
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from thalweg.errors import RecordError
from thalweg.record.journal import write_all

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Name, safetensors dtype, shape and first byte in the arena, as ``Layout.tensors`` has them.
Tensor: TypeAlias = tuple[str, str, Sequence[int], int]

BYTES: Final = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
LARGEST_HEADER: Final = 100_000_000
ROUND: Final = "thalweg_round"


def write(path: Path, tensors: Sequence[Tensor], arena: Buffer, number: int, *, record: Path | None = None) -> None:
    """Write the model in ``arena`` as the checkpoint of round ``number``.

    ``record`` is the folder of the run's record, if ``path`` is not in it itself. Raises RecordError that names the
    last good checkpoint, which stays, if it cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb", buffering=0) as file:
            _write(file, tensors, memoryview(arena).cast("B"), number)
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise RecordError(
            f"cannot write the checkpoint of round {number} to {path}: {error.strerror}; {_last(path)}",
            f"Make room, then: thalweg run --resume {record or path.parent}",
        ) from error


def read(path: Path, tensors: Sequence[Tensor], arena: Buffer) -> int:
    """Read a checkpoint of the same tensors into ``arena`` and return its round. Raises RecordError."""
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            header, start = _header(path, file, size)
            expected = _describe(tensors)
            found = {name: value for name, value in header.items() if name != "__metadata__"}
            if found != expected or size - start != _total(tensors):
                raise _other_model(path, found, expected)
            buffer = memoryview(arena).cast("B")
            for tensor in tensors:
                _read_into(path, file, buffer[_span(tensor)])
            return _round(path, header)
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}", "Name the folder of a run's record") from error


def round_of(path: Path) -> int | None:
    """Return the round of a checkpoint, or None if there is none. Raises RecordError for a damaged one."""
    if not path.exists():
        return None
    with path.open("rb", buffering=0) as file:
        header, _ = _header(path, file, os.fstat(file.fileno()).st_size)
    return _round(path, header)


def _write(file: FileIO, tensors: Sequence[Tensor], arena: memoryview, number: int) -> None:
    header = {"__metadata__": {"format": "pt", ROUND: str(number)}, **_describe(tensors)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    write_all(file, len(text).to_bytes(8, "little") + text)
    for tensor in tensors:
        write_all(file, arena[_span(tensor)])


def _describe(tensors: Sequence[Tensor]) -> dict[str, Any]:
    described: dict[str, Any] = {}
    end = 0
    for tensor in tensors:
        name, dtype, shape, _ = tensor
        begin, end = end, end + _bytes(tensor)
        described[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    return described


def _bytes(tensor: Tensor) -> int:
    return prod(tensor[2]) * BYTES[tensor[1]]


def _span(tensor: Tensor) -> slice:
    return slice(tensor[3], tensor[3] + _bytes(tensor))


def _total(tensors: Sequence[Tensor]) -> int:
    return sum(map(_bytes, tensors))


def _header(path: Path, file: FileIO, size: int) -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file and the byte behind it."""
    damaged = RecordError(f"{path} is not a whole checkpoint", "Remove it and start the run anew")
    length = int.from_bytes(file.read(8) or b"", "little")
    if not 0 < length <= min(LARGEST_HEADER, size - 8):
        raise damaged
    try:
        header = json.loads(file.read(length) or b"")
    except ValueError as error:
        raise damaged from error
    if not isinstance(header, dict):
        raise damaged
    return cast("dict[str, Any]", header), 8 + length


def _round(path: Path, header: dict[str, Any]) -> int:
    metadata = header.get("__metadata__")
    number = metadata.get(ROUND) if isinstance(metadata, dict) else None
    if not isinstance(number, str) or not number.isdecimal():
        raise RecordError(f"{path} does not say of which round it is", "Name a checkpoint of a run's record")
    return int(number)


def _read_into(path: Path, file: FileIO, target: memoryview) -> None:
    while target:
        count = file.readinto(target)
        if not count:
            raise RecordError(f"{path} is cut short", "Remove it and start the run anew")
        target = target[count:]


def _other_model(path: Path, found: dict[str, Any], expected: dict[str, Any]) -> RecordError:
    names = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
    what = f"{names[0]!r} differs" if names else "its size differs"
    return RecordError(f"{path} holds another model: {what}", "Go on with the plan that the record holds")


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
