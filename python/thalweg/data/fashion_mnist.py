"""Fashion-MNIST from a folder of IDX files, packed with gzip or not: 28x28 pixels, padded to 32x32."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from thalweg.data.dataset import SIDE, Dataset, Split, pad_grey
from thalweg.data.files import hint, places, read_bounded
from thalweg.errors import DataError

NAME: Final = "fashion-mnist"
SYSTEM: Final = (Path("/usr/share/datasets/fashion-mnist"), Path("/usr/share/dataset-fashion-mnist"))
PARTS: Final = {"train": "train", "test": "t10k"}
UNSIGNED_BYTE: Final = 8
SAMPLES_MAX: Final = 100_000
MEAN: Final = 0.2860
STD: Final = 0.3530


def load(root: Path | None) -> Split:
    """Return (train, test) in the order of the files. Raises DataError if a file is missing or damaged."""
    folder = _folder(places(NAME, root, SYSTEM))
    return _part(folder, "train"), _part(folder, "test")


def _folder(candidates: list[Path]) -> Path:
    for place in candidates:
        if _file(place, _images_name("train")) is not None:
            return place
    raise DataError(f"no {_images_name('train')} or .gz of it in {', '.join(map(str, candidates))}", hint(NAME))


def _part(folder: Path, part: str) -> Dataset:
    images = _idx(_existing(folder, _images_name(part)), dimensions=3)
    labels = _idx(_existing(folder, f"{PARTS[part]}-labels-idx1-ubyte"), dimensions=1).astype(np.int64)
    augment = part == "train"
    return Dataset(NAME, pad_grey(images), labels, 10, (MEAN,) * 3, (STD,) * 3, augment=augment, flip=augment)


def _images_name(part: str) -> str:
    return f"{PARTS[part]}-images-idx3-ubyte"


def _file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _existing(folder: Path, name: str) -> Path:
    path = _file(folder, name)
    if path is None:
        raise DataError(f"{folder} has no {name} and no {name}.gz", hint(NAME))
    return path


def _idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes: two zeros, type, rank, big-endian sizes, then the values."""
    again = "Fetch the file again"
    header = 4 + 4 * dimensions
    limit = header + SAMPLES_MAX * (SIDE * SIDE if dimensions == 3 else 1)
    content = read_bounded(path, limit)
    if len(content) < header or content[:4] != bytes((0, 0, UNSIGNED_BYTE, dimensions)):
        raise DataError(f"{path} is not an IDX file of bytes in {dimensions} dimensions", again)
    shape: tuple[int, ...] = struct.unpack_from(f">{dimensions}I", content, 4)
    if any(side > SIDE for side in shape[1:]):
        raise DataError(f"{path} has images of {shape[1]}x{shape[2]}", f"Images may be at most {SIDE}x{SIDE}")
    expected = header + int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise DataError(f"{path} has {len(content)} bytes where its header promises {expected}", again)
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)
