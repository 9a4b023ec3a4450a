"""CIFAR-10 from a local folder or archive, in the published binary or Python version."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from thalweg.data.cifar10_pickle import read_python_batch
from thalweg.data.dataset import CHANNELS, SIDE, Dataset, Images, Labels, Split
from thalweg.data.files import hint, places, read_bounded
from thalweg.errors import DataError

NAME: Final = "cifar10"
TRAIN: Final = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST: Final = "test_batch"
BATCHES: Final = (*TRAIN, TEST)
SUBFOLDERS: Final = ("", "cifar-10-batches-bin", "cifar-10-batches-py")
ARCHIVES: Final = ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz")
PIXELS: Final = CHANNELS * SIDE * SIDE
RECORD: Final = 1 + PIXELS
FILE_MAX: Final = 32 << 20  # large enough for the published batches of 30.7 and 31.0 million bytes
ARCHIVE_MAX: Final = 1 << 30
MEAN: Final = (0.4914, 0.4822, 0.4465)
STD: Final = (0.2023, 0.1994, 0.2010)


def load(root: Path | None) -> Split:
    """Return (train, test) in the order of the files; batches may hold any number of images.

    Normalisation, crop and flip are as in FedComm. Raises DataError if a batch is missing or damaged.
    """
    source = _source(places(NAME, root))
    batches = {}
    for name, content in _archived(source) if source.is_file() else _loose(source):
        read = read_binary_batch if name.endswith(".bin") else read_python_batch
        batches[name.removesuffix(".bin")] = read(content, f"{name} in {source}")
    missing = [name for name in BATCHES if name not in batches]
    if missing:
        raise DataError(f"{source} lacks {', '.join(missing)}", hint(NAME))
    return _dataset([batches[name] for name in TRAIN], True), _dataset([batches[TEST]], False)


def read_binary_batch(content: bytes, where: str) -> tuple[Images, Labels]:
    """Decode records of one label byte and 3,072 pixel bytes into images (n, 3, 32, 32) and labels (n,)."""
    if not content or len(content) % RECORD:
        raise DataError(f"{where} has {len(content)} bytes, not a multiple of {RECORD}", "Fetch the file again")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)
    return records[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE), records[:, 0].astype(np.int64)


def _dataset(batches: list[tuple[Images, Labels]], training: bool) -> Dataset:
    images = np.concatenate([images for images, _ in batches])
    labels = np.concatenate([labels for _, labels in batches])
    return Dataset(NAME, images, labels, 10, MEAN, STD, augment=training, flip=training)


def _source(candidates: list[Path]) -> Path:
    for place in candidates:
        if place.is_file():
            return place
        for folder in (place / name for name in SUBFOLDERS):
            if any((folder / name).is_file() for name in (f"{TEST}.bin", TEST)):
                return folder
        for archive in (place / name for name in ARCHIVES):
            if archive.is_file():
                return archive
    raise DataError(f"no CIFAR-10 batches and no archive of them in {', '.join(map(str, candidates))}", hint(NAME))


def _loose(folder: Path) -> Iterator[tuple[str, bytes]]:
    suffix = ".bin" if (folder / f"{TEST}.bin").is_file() else ""
    for path in (folder / f"{name}{suffix}" for name in BATCHES):
        if path.is_file():
            yield path.name, read_bounded(path, FILE_MAX)


def _archived(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the batches of a tar archive one by one; nothing is extracted to disk."""
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                if member.offset_data + member.size > ARCHIVE_MAX:
                    raise DataError(f"{path} unpacks to more than {ARCHIVE_MAX} bytes", "Fetch the archive again")
                name = Path(member.name).name
                if member.isfile() and name.removesuffix(".bin") in BATCHES and member.size <= FILE_MAX:
                    stream = archive.extractfile(member)
                    if stream is not None:
                        yield name, stream.read(FILE_MAX)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}", "Fetch the archive again") from error
