"""The log of a run: what happened when. Its file is held open, for when the process can open no more files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from thalweg.errors import RecordError
from thalweg.record.journal import write_all


class Log:
    """A log that is being written; client processes append to it as well.

    A note that cannot be written is no reason to end a job: it is left out, and the next one that can be written says
    how many were.
    """

    def __init__(self, path: Path, now: Callable[[], str]) -> None:
        """Open or make the log. ``now`` gives the time that lines begin with. Raises RecordError."""
        self.path = path
        self._now = now
        self._missing = 0
        self._why = ""
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise RecordError(f"cannot write {path}: {error.strerror}", "Correct its permissions") from error

    def write(self, text: str) -> None:
        """Append a line with the time."""
        lines = [text]
        if self._missing:
            lines.insert(0, f"{self._missing} notes could not be written here: {self._why}")
        try:
            write_all(self._file, "".join(f"{self._now()} {line}\n" for line in lines).encode())
        except (OSError, ValueError) as error:  # ValueError: it is closed
            self._missing += 1
            self._why = str(error)
        else:
            self._missing = 0

    def close(self) -> None:
        """Give the file free; further notes are left out."""
        self._file.close()
