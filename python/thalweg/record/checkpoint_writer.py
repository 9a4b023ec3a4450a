"""Writes checkpoints in the background, so that no round waits for storage (LIFL appendix B)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from thalweg.errors import RecordError
from thalweg.record import stores

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from thalweg.record.checkpoint import Tensor
    from thalweg.tensors.arena import Arena

# Seconds that the end of a job waits until the storage has the last checkpoint.
LAST_SECONDS: Final = 60.0


@dataclass
class _Copy:
    """A copy of the model after a round, to be written as its checkpoint."""

    number: int
    tensors: Sequence[Tensor]
    model: bytearray
    # The state of the server's algorithm: a copy that nobody changes.
    state: Arena | None


class CheckpointWriter:
    """Writes checkpoints one after the other. While it writes one, it keeps only the newest of those that follow.

    So it never needs more than two copies of the model, however slow the storage is.
    """

    def __init__(self, store: stores.Store) -> None:
        self._store = store
        self._waiting: _Copy | None = None
        self._writing: int | None = None
        self._spare: list[bytearray] = []
        self._is_closed = False
        self._written, self._left_out, self._failed = 0, 0, 0
        self._last: int | None = None
        self._notes: list[str] = []
        self._changed = threading.Condition()
        # A daemon thread: storage that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    @property
    def last(self) -> int | None:
        """The round of the last checkpoint that was written."""
        return self._last

    def put(self, number: int, tensors: Sequence[Tensor], arena: Buffer, state: Arena | None = None) -> None:
        """Copy the model in ``arena`` and write the copy in the background, with a server's ``state``, which stays.

        A checkpoint that has not been begun yet is dropped for it.
        """
        with self._changed:
            replaced, self._waiting = self._waiting, None
            if replaced is not None:
                self._left_out += 1
                cause = f"storage still writes that of round {self._writing}"
                self._notes.append(f"the checkpoint of round {replaced.number} is left out: {cause}")
                self._spare.append(replaced.model)
            spare = self._spare.pop() if self._spare else bytearray()
        view = memoryview(arena).cast("B")
        if len(spare) == len(view):
            memoryview(spare)[:] = view
        else:
            spare = bytearray(view)
        with self._changed:
            self._waiting = _Copy(number, tensors, spare, state)
            self._changed.notify_all()

    def notes(self) -> list[str]:
        """Return notes about events since the last call."""
        with self._changed:
            notes, self._notes = self._notes, []
        return notes

    def facts(self) -> dict[str, str | int | None]:
        """Return the facts about checkpoints for the manifest."""
        with self._changed:
            return {
                "url": self._store.url,
                "written": self._written,
                "left_out": self._left_out,
                "failed": self._failed,
                "last": self._last,
            }

    def close(self, timeout: float = LAST_SECONDS) -> None:
        """Wait at most ``timeout`` seconds until the newest checkpoint is written. Idempotent."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(timeout)
        with self._changed:
            lost = self._waiting.number if self._waiting is not None else self._writing
            if lost is not None:
                failure = f"the storage did not take the checkpoint of round {lost} within {timeout:g} s"
                self._notes.append(f"{failure}; the last that it has is that of round {self._last}")

    def _run(self) -> None:
        while (copy := self._next()) is not None:
            failure = None
            try:
                stores.save(self._store, copy.tensors, copy.model, copy.number, copy.state)
            except RecordError as error:
                failure = str(error)
            except Exception as error:  # noqa: BLE001 - a filesystem may raise anything; the job goes on
                failure = f"cannot write the checkpoint of round {copy.number}: {type(error).__name__}: {error}"
            self._done(copy, failure)

    def _next(self) -> _Copy | None:
        """Wait for the next checkpoint to write; return None after ``close``, if none waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is not None or self._is_closed)
            copy, self._waiting = self._waiting, None
            self._writing = None if copy is None else copy.number
        return copy

    def _done(self, copy: _Copy, failure: str | None) -> None:
        with self._changed:
            self._writing = None
            self._spare.append(copy.model)
            if failure is None:
                self._written += 1
                self._last = copy.number
            else:
                self._failed += 1
                self._notes.append(failure)
