"""The record of asynchronous rounds: a folder that a killed job goes on from.

==========================  ====================================================================================
``fedbuff.json``            how updates are averaged: what ``fedbuff`` was given
``journal.jsonl``           a line a version of the model, synced to disk before the next one
``checkpoint.safetensors``  the model and the optimizer's state after the last version
==========================  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from thalweg import wire
from thalweg.errors import RecordError
from thalweg.record import checkpoint, journal, reading
from thalweg.record.columns import Row
from thalweg.tensors.arena import Arena
from thalweg.ui import strict_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

SETTINGS: Final = "fedbuff.json"
JOURNAL: Final = "journal.jsonl"
CHECKPOINT: Final = "checkpoint.safetensors"


@dataclass(frozen=True)
class Settings:
    """How updates are averaged. It does not change when a job goes on. ``optimizer`` is its name, if one is given."""

    buffer: int
    staleness: float
    most_stale: int | None
    learning_rate: float
    optimizer: str | None


class VersionRecord:
    """A record that this process writes. ``done`` is its last version, 0 if it has none yet."""

    def __init__(self, path: Path, settings: Settings, *, resume: bool) -> None:
        """Make the folder ``path``, or open the record in it to go on. Raises RecordError.

        Lines of versions after the checkpoint are dropped, because these versions are made again.
        """
        self.path = path
        #: Seconds from the first task to the last version.
        self.seconds = 0.0
        if resume:
            self._check(settings)
        else:
            self._make(settings)
        self.done = checkpoint.round_of(path / CHECKPOINT) or 0
        try:
            self._journal = journal.Journal(path / JOURNAL, self.done)
        except OSError as error:
            raise RecordError(f"cannot write {path / JOURNAL}: {error.strerror}", "Correct its permissions") from error
        for row in journal.read(path / JOURNAL):
            seconds = row.get("seconds")
            self.seconds = float(seconds) if isinstance(seconds, (int, float)) else self.seconds

    def _make(self, settings: Settings) -> None:
        if any((self.path / name).exists() for name in (SETTINGS, JOURNAL, CHECKPOINT)):
            raise RecordError(f"{self.path} is a record already", "Give it as resume to go on, or give another folder")
        text = strict_json.dumps(settings, indent=2) + "\n"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            checkpoint.write_file(self.path / SETTINGS, [text.encode()])
        except OSError as error:
            raise RecordError(f"cannot make the record {self.path}: {error.strerror}", "Give another folder") from error

    def _check(self, settings: Settings) -> None:
        """Raise RecordError if there is no record, or if its settings differ."""
        try:
            found = wire.table_of(wire.made(Settings, reading.document(self.path / SETTINGS)))
        except FileNotFoundError:
            cause = f"{self.path} is no record of asynchronous rounds: it has no {SETTINGS}"
            raise RecordError(cause, "Name the folder that was given as record") from None
        except (OSError, ValueError) as error:
            raise RecordError(f"cannot read {self.path / SETTINGS}: {error}", "Restore it from a copy") from error
        given = wire.table_of(settings)
        differences = [f"{key} ({found[key]}, {given[key]})" for key in given if found[key] != given[key]]
        if differences:
            raise RecordError(
                f"the settings differ from those of {self.path} (there, here) in {', '.join(differences)}",
                "Take these back, or begin a new record",
            )

    def restore(self, tensors: Sequence[checkpoint.Tensor], arena: Buffer) -> Arena | None:
        """Read the model of version ``done`` into ``arena``; return the state of the server's rule. Raises RecordError.

        If no version was recorded, ``arena`` stays as it is.
        """
        if not self.done:
            return None
        checkpoint.read(self.path / CHECKPOINT, tensors, arena)
        return checkpoint.read_state(self.path / CHECKPOINT)

    def keep(self, entry: Row, tensors: Sequence[checkpoint.Tensor], arena: Buffer, state: Arena | None) -> None:
        """Record a version: its line, and the model in ``arena`` with the rule's ``state``. Raises RecordError."""
        number = int(entry["round"])
        try:
            self._journal.append(entry)
        except RecordError as error:
            raise RecordError(error.cause, "Make room, then give the folder as resume") from error
        try:
            checkpoint.write_file(self.path / CHECKPOINT, checkpoint.content(tensors, arena, number, state))
        except OSError as error:
            raise RecordError(
                f"cannot write the checkpoint of version {number} to {self.path}: {error.strerror}",
                "Make room, then give the folder as resume; the version before is whole",
            ) from error
        self.done = number

    def close(self) -> None:
        """Close the files, so that another process can go on."""
        self._journal.close()
