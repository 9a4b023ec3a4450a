"""The log of a run: events with their times. Its file stays open, in case the process cannot open more files later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from thalweg.errors import RecordError
from thalweg.record.journal import write_all


class Log:
    """A log that is open for writing; client processes append to it as well.

    A note that cannot be written does not end the job. It is dropped, and the next note that can be written says how
    many were dropped.
    """

    def __init__(self, path: Path, now: Callable[[], str]) -> None:
        """Open or create the log. ``now`` returns the time at the start of a line. Raises RecordError."""
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
        except (OSError, ValueError) as error:  # ValueError if the file is closed
            self._missing += 1
            self._why = str(error)
        else:
            self._missing = 0

    def close(self) -> None:
        """Close the file; further notes are dropped."""
        self._file.close()
