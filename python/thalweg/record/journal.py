"""The journal: one line of JSON for each round, synced to disk before the next round. A crash loses at most one round.

No entry stays in memory; readers read the file again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import IO, TYPE_CHECKING

from thalweg import bounded_json
from thalweg.errors import RecordError
from thalweg.outcome import Entry
from thalweg.record import reading
from thalweg.record.columns import Row
from thalweg.ui import strict_json

if TYPE_CHECKING:
    from typing_extensions import Buffer


def read(path: Path) -> Iterator[Row]:
    """Yield the entries, one in memory at a time; none if there is no journal.

    A last line cut short by a crash is skipped. Raises RecordError for any other damage.
    """
    try:
        with reading.opened(path) as stream:
            yield from (entry for entry, _ in _parse(path, stream))
    except FileNotFoundError:
        return
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}", "Correct its permissions") from error


def is_being_written(path: Path) -> bool:
    """Return whether a process has the journal open for writing. Takes the lock for a moment. Raises RecordError."""
    try:
        with reading.opened(path) as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}", "Correct its permissions") from error
    return False


class Follower:
    """Reads a journal that another process writes: iterating yields the entries since the last time.

    A line that is still being written comes the next time. Use it as a context manager.
    """

    def __init__(self, path: Path) -> None:
        """Open the journal at ``path``. Raises RecordError, OSError."""
        self._path, self._file, self._number = path, reading.opened(path), 0

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        """Return the next whole entry. Raises StopIteration if there is none yet, and RecordError if it is damaged."""
        at = self._file.tell()
        line = self._file.readline(reading.LONGEST_LINE)
        if not line.endswith(b"\n"):
            if len(line) == reading.LONGEST_LINE:
                raise _damaged(self._path, self._number + 1)
            self._file.seek(at)
            raise StopIteration
        self._number += 1
        return _entry(self._path, self._number, line)

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _parse(path: Path, stream: IO[bytes]) -> Iterator[tuple[Row, int]]:
    """Yield the entries of whole lines, each with the offset of the byte after its line."""
    end = 0
    for number, line in enumerate(reading.lines(stream), 1):
        if line.endswith(b"\n"):
            end += len(line)
            yield _entry(path, number, line), end
        elif len(line) == reading.LONGEST_LINE:
            raise _damaged(path, number)


def _entry(path: Path, number: int, line: bytes) -> Row:
    try:
        entry = bounded_json.read_object(line, most=reading.LONGEST_LINE, finite=False)
    except bounded_json.JsonError as error:
        raise _damaged(path, number) from error
    place = entry.get("round")
    if type(place) is not int or not 0 <= place <= reading.LAST_ROUND:
        raise _damaged(path, number)
    return entry


def _damaged(path: Path, number: int) -> RecordError:
    return RecordError(f"line {number} of {path} is damaged", "Remove that line and those after it")


class Journal:
    """The journal of a run, open for writing. A lock ensures that only one process writes it."""

    def __init__(self, path: Path, keep: int = 0) -> None:
        """Open or create the journal. It keeps entries of rounds up to ``keep`` and drops later ones.

        Raises RecordError if another process writes it.
        """
        self.path = path
        # Unbuffered: closing a buffered file after a full disk would write the rest of its buffer again.
        self._file: FileIO = path.open("a+b", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise RecordError(f"another process writes {path}", "Wait for that run to end, or end it") from error
        self._end = 0
        with reading.opened(path) as stream:
            for entry, end in _parse(path, stream):
                self._end = end if entry["round"] <= keep else self._end
        self._file.truncate(self._end)

    @property
    def size(self) -> int:
        """Size of the journal in bytes."""
        return self._end

    def append(self, entry: Entry | Row) -> None:
        """Write an entry and sync it to the disk. Raises RecordError if that fails; earlier entries stay readable."""
        line = strict_json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        try:
            write_all(self._file, line)
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(self._end)
            raise RecordError(
                f"cannot write {self.path}: {error.strerror}; its earlier rounds are whole",
                f"Make room, then: thalweg run --resume {self.path.parent}",
            ) from error
        self._end += len(line)

    def close(self) -> None:
        """Close the file, which releases the lock."""
        self._file.close()


def write_all(file: FileIO, content: Buffer) -> None:
    """Write all of ``content`` to an unbuffered file, which may need several writes. Raises OSError."""
    rest = memoryview(content).cast("B")
    while rest:
        rest = rest[file.write(rest) :]
