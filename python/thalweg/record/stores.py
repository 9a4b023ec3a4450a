"""Stores for checkpoints outside the record: a folder, or an object store that pyarrow.fs can reach.

A checkpoint is a file ``round-00000012.safetensors`` in a folder named like the run's record. It appears atomically: a
folder needs a rename for this, an object store does not. If a file is incomplete nevertheless, its size shows that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from thalweg import extras
from thalweg.errors import RecordError
from thalweg.record import checkpoint

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from thalweg.tensors.arena import Arena

NAME: Final = re.compile(r"round-(\d{8})\.safetensors")
# Number of checkpoints that are kept: more than one, in case the newest checkpoint is damaged.
KEPT: Final = 2
# Filesystems of pyarrow in which an object appears only when it is complete. A rename there would copy the object.
OBJECTS: Final = frozenset({"s3", "gcs", "abfs"})


class Store(Protocol):
    """A folder of checkpoints. All methods raise OSError, or ValueError for input that the storage does not accept."""

    @property
    def url(self) -> str:
        """The URL of the folder."""

    def names(self) -> list[str]:
        """Return the names of its files; an empty list if the folder does not exist yet."""

    def write(self, name: str, content: Iterable[Buffer]) -> None:
        """Write a file atomically."""

    def read(self, name: str) -> tuple[Any, int]:
        """Open a file; return it and its size in bytes."""

    def remove(self, name: str) -> None:
        """Remove a file."""


class Folder:
    """A folder of this machine, or one that is mounted here."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def url(self) -> str:
        return str(self._path)

    def names(self) -> list[str]:
        return [path.name for path in self._path.iterdir()] if self._path.is_dir() else []

    def write(self, name: str, content: Iterable[Buffer]) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        checkpoint.write_file(self._path / name, content)

    def read(self, name: str) -> tuple[Any, int]:
        path = self._path / name
        return path.open("rb", buffering=0), path.stat().st_size

    def remove(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)


class Objects:
    """A folder of a pyarrow filesystem, usually of an object store."""

    def __init__(self, files: Any, path: str, url: str) -> None:
        """Take the filesystem, the path of the folder in it, and its URL."""
        self._files, self._path, self._url = files, path.rstrip("/"), url

    @property
    def url(self) -> str:
        return self._url

    def names(self) -> list[str]:
        from pyarrow import fs

        infos = self._files.get_file_info(fs.FileSelector(self._path, allow_not_found=True))
        return [info.base_name for info in infos if info.is_file]

    def write(self, name: str, content: Iterable[Buffer]) -> None:
        path = f"{self._path}/{name}"
        if self._files.type_name in OBJECTS:
            self._put(path, content)
            return
        self._files.create_dir(self._path, recursive=True)
        part = f"{self._path}/.{name}.part"
        self._put(part, content)
        self._files.move(part, path)

    def _put(self, path: str, content: Iterable[Buffer]) -> None:
        try:
            with self._files.open_output_stream(path) as file:
                for piece in content:
                    file.write(piece)
        except BaseException:
            # Without this an object store may accept the bytes written so far as the whole object.
            with suppress(OSError):
                self._files.delete_file(path)
            raise

    def read(self, name: str) -> tuple[Any, int]:
        path = f"{self._path}/{name}"
        return self._files.open_input_file(path), self._files.get_file_info(path).size

    def remove(self, name: str) -> None:
        self._files.delete_file(f"{self._path}/{name}")


def store_of(url: str, run: str) -> Store:
    """Return the store of a run's checkpoints below ``url``, a folder or a URL.

    Raises RecordError for an invalid one, and PackageError for an object store without pyarrow.
    """
    whole = f"{url.partition('?')[0].rstrip('/')}/{run}"
    parts = urlsplit(url)
    if "://" not in url:
        return Folder(Path(url) / run)
    if parts.scheme == "file" and not parts.netloc:
        return Folder(Path(unquote(parts.path)) / run)
    try:
        if not parts.netloc or parts.scheme == "file":
            raise ValueError("it names no bucket" if parts.scheme != "file" else "file:// has three slashes")
        extras.require(f"keeping checkpoints at {whole}", "pyarrow")
        from pyarrow import fs

        files, path = fs.FileSystem.from_uri(url)
    except (OSError, ValueError) as error:  # these include pyarrow's own exceptions
        raise RecordError(
            f"checkpoints cannot be kept at {whole}: {_line(error)}",
            "Give a folder, file:///FOLDER, or a URL that pyarrow.fs understands, as s3://BUCKET/FOLDER",
        ) from error
    return Objects(files, f"{path}/{run}", whole)


def save(
    store: Store, tensors: Sequence[checkpoint.Tensor], arena: Buffer, number: int, state: Arena | None = None
) -> None:
    """Write the checkpoint of round ``number``, then remove old ones. Raises RecordError; old ones then stay."""
    try:
        store.write(f"round-{number:08}.safetensors", checkpoint.content(tensors, arena, number, state))
        for name in _checkpoints(store)[KEPT:]:
            store.remove(name)
    except (OSError, ValueError) as error:
        raise RecordError(
            f"cannot write the checkpoint of round {number} to {store.url}: {_line(error)}",
            "Make room or correct the permissions there; the next checkpoint is another try",
        ) from error


def rounds(store: Store) -> list[int]:
    """Return the rounds of the checkpoints that are whole, the newest first. Raises RecordError."""
    rounds_stored = []
    try:
        for name in _checkpoints(store):
            file, size = store.read(name)
            with file, suppress(RecordError):
                rounds_stored.append(checkpoint.check(f"{store.url}/{name}", file, size))
    except (OSError, ValueError) as error:
        raise _unreadable(store, error) from error
    return rounds_stored


def restore(store: Store, number: int, tensors: Sequence[checkpoint.Tensor], arena: Buffer) -> int:
    """Read the checkpoint of round ``number`` into ``arena``; return the round. Raises RecordError."""
    name = f"round-{number:08}.safetensors"
    try:
        file, size = store.read(name)
        with file:
            return checkpoint.restore(f"{store.url}/{name}", file, size, tensors, arena)
    except (OSError, ValueError) as error:
        raise _unreadable(store, error) from error


def restore_state(store: Store, number: int) -> Arena | None:
    """Return the state of the server's algorithm in the checkpoint of round ``number``. Raises RecordError."""
    name = f"round-{number:08}.safetensors"
    try:
        file, size = store.read(name)
        with file:
            return checkpoint.restore_state(f"{store.url}/{name}", file, size)
    except (OSError, ValueError) as error:
        raise _unreadable(store, error) from error


def _checkpoints(store: Store) -> list[str]:
    """Return the names of the checkpoints, the newest first."""
    return sorted(filter(NAME.fullmatch, store.names()), reverse=True)


def _unreadable(store: Store, error: Exception) -> RecordError:
    return RecordError(
        f"cannot read the checkpoints at {store.url}: {_line(error)}",
        "See whether that storage can be reached from here",
    )


def _line(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else error
    return " ".join(str(text).split())[:300]
