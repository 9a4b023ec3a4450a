"""Finds data files, and reads them with a limit on their size."""

from __future__ import annotations

import gzip
import importlib.util
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from thalweg import extras
from thalweg.errors import DataError

ENVIRONMENT: Final = "THALWEG_DATA"


def places(name: str, root: Path | None, system: Sequence[Path] = ()) -> list[Path]:
    """Return the existing places to look for data set ``name``, best first.

    With ``root``: ``root`` and ``root/name``. Else: ``$THALWEG_DATA/name``, ``$THALWEG_DATA``, then the folders
    ``system``. Raises DataError if none exists.
    """
    if root is not None:
        tried = [root, root / name]
    else:
        folder = os.environ.get(ENVIRONMENT)
        tried = [Path(folder) / name, Path(folder)] if folder else []
        tried += system
    existing = [place for place in tried if place.exists()]
    if not existing:
        where = ", ".join(map(str, tried)) if tried else "nowhere to look"
        raise DataError(f"the data set {name!r} is not there (tried: {where})", hint(name))
    return existing


def hint(name: str) -> str:
    """Return the hint for a user whose files of data set ``name`` are missing."""
    hints = {
        "fashion-mnist": "Install Debian's package dataset-fashion-mnist, or give a folder of IDX files",
        "cifar10": "Give the folder or the .tar.gz of CIFAR-10's binary or Python version",
    }
    return f"{hints.get(name, 'Give the folder with its files')} as --data-root or in {ENVIRONMENT}"


def read_bounded(path: Path, limit: int) -> bytes:
    """Read a file, unpacked if its name ends in .gz. Raises DataError beyond ``limit`` unpacked bytes."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            content = stream.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}", "Fetch the file again, or correct its permissions") from error
    if len(content) > limit:
        raise DataError(f"{path} holds more than {limit} bytes", "Fetch the file again: it is not the published one")
    return content


def packaged(package: str, file: str) -> Path:
    """Return the path of ``file`` in an installed Python package, which is not imported. Raises DataError."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise DataError(f"the data ships in the Python package {package}, which is not installed", extras.hint(package))
    return Path(spec.origin).parent / file


def read_packaged_table(package: str, file: str, columns: int, rows: int, limit: int) -> NDArray[np.int32]:
    """Read a table of integers, as comma-separated text, from an installed Python package.

    Returns int32 of shape (rows, columns). The package is not imported, since that takes longer than reading. Raises
    DataError if the package is missing or the table has another size.
    """
    path = packaged(package, file)
    text = read_bounded(path, limit)
    if text.translate(None, b"0123456789,\n") or text.count(b"\n") != rows or text.count(b",") != rows * (columns - 1):
        raise DataError(f"{path} is not {rows} rows of {columns} whole numbers", f"Reinstall {package}")
    values = np.fromstring(text.replace(b"\n", b",").decode("ascii"), dtype=np.int32, sep=",")
    return values.reshape(rows, columns)
