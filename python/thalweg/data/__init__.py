"""The data sets a plan can name, and how they are cut among clients. Imports no framework."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import cast

from thalweg.data.dataset import Dataset, Split, drawn
from thalweg.data.partition import Partition, describe, parse_partition, partition
from thalweg.errors import DataError

__all__ = [
    "CLASSES",
    "DATASETS",
    "Dataset",
    "Partition",
    "describe",
    "drawn",
    "find",
    "load",
    "parse_partition",
    "partition",
]

CLASSES = 10

# Name in a plan -> module with `load(root: Path | None) -> Split`.
DATASETS: dict[str, str] = {
    "digits": "digits",
    "mnist": "mnist",
    "fashion-mnist": "fashion_mnist",
    "cifar10": "cifar10",
}


def find(name: str) -> str:
    """Return ``name`` if it is a known data set, else raise DataError."""
    if name in DATASETS:
        return name
    near = get_close_matches(name, DATASETS, n=1)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    raise DataError(f"unknown data set {name!r}", f"{guess}Known: {', '.join(DATASETS)}")


def load(name: str, *, root: Path | None = None) -> tuple[Dataset, Dataset]:
    """Load data set ``name`` as (train, test).

    ``root`` is the folder (or, for cifar10, the archive) with the files; without it the environment variable
    ``THALWEG_DATA`` is tried, then the folder where the operating system installs the data set. ``digits`` and
    ``mnist`` ship inside Python packages and look at neither. Raises DataError if files are missing or damaged.
    """
    module = import_module(f"thalweg.data.{DATASETS[find(name)]}")
    return cast(Split, module.load(root))
