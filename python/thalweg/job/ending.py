"""How a record says that its run ended badly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from thalweg.errors import RecordError
from thalweg.record import RunRecord

if TYPE_CHECKING:
    from thalweg.ui.progress import Progress


def end_badly(record: RunRecord, note: Callable[[str], None], error: BaseException) -> None:
    """Keep that a run failed and why, or that it was interrupted; close the record."""
    interrupted = not isinstance(error, Exception)
    status = "interrupted" if interrupted else "failed"
    try:
        record.log(status if interrupted else f"failed: {error}")
        record.note(reason=None if interrupted else str(error))
        record.finish(status)
    except RecordError as second:
        note(f"the record is not complete: {second}")


@contextmanager
def recording(record: RunRecord, progress: Progress) -> Iterator[None]:
    """Say in the record if what is done with it ends badly, and leave the terminal as it was."""
    try:
        yield
    except BaseException as error:
        end_badly(record, progress.note, error)
        raise
    finally:
        progress.close()
