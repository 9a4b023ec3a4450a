"""One line of JSON a round, on disk before the next round begins. A crash loses at most the round under way.

No entry stays in memory: who wants them reads them again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from thalweg import bounded_json
from thalweg.errors import RecordError
from thalweg.record import reading
from thalweg.ui import strict_json

if TYPE_CHECKING:
    from typing_extensions import Buffer


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries, one in memory at a time; none if there is no journal.

    A last line cut short by a crash is left out. Raises RecordError for anything else odd.
    """
    try:
        with reading.opened(path) as stream:
            yield from (entry for entry, _ in _parse(path, stream))
    except FileNotFoundError:
        return
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}", "Correct its permissions") from error


def _parse(path: Path, stream: IO[bytes]) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the entries of whole lines, each with the byte behind it."""
    end = 0
    for number, line in enumerate(reading.lines(stream), 1):
        if line.endswith(b"\n"):
            end += len(line)
            yield _entry(path, number, line), end
        elif len(line) == reading.LONGEST_LINE:
            raise _damaged(path, number)


def _entry(path: Path, number: int, line: bytes) -> dict[str, Any]:
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
    """The journal of a run that is being written. Only one process at a time has it."""

    def __init__(self, path: Path, keep: int = 0) -> None:
        """Open or make the journal; keep entries of rounds up to ``keep``, drop later ones.

        Raises RecordError if another process writes it.
        """
        self.path = path
        # Without a buffer: what is left in one after a full disk would be written again when it is closed.
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
        """Its bytes."""
        return self._end

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write an entry through to the disk. Raises RecordError if that fails; earlier entries stay readable."""
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
        """Give the journal free."""
        self._file.close()


def write_all(file: FileIO, content: Buffer) -> None:
    """Write all of ``content`` to an unbuffered file, which may take it in several pieces. Raises OSError."""
    rest = memoryview(content).cast("B")
    while rest:
        rest = rest[file.write(rest) :]
