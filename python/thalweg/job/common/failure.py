"""Records that a run failed or was interrupted, and tells the user how to resume it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from thalweg.errors import RecordError
from thalweg.record import Record, RunRecord

if TYPE_CHECKING:
    from thalweg.ui.progress import Progress


# The line of a command's standard error that says where the record is.
_RECORD: Final = re.compile(r"\brecord: (.+)$", re.MULTILINE)
RUN: Final = "thalweg run"


def end_badly(record: RunRecord, note: Callable[[str], None], error: BaseException, command: str = RUN) -> None:
    """Record that a run failed and why, or that it was interrupted. Close the record; ``note`` gets how to resume.

    ``command`` is the command that resumes it. An ``error`` that is no ``Exception``, such as KeyboardInterrupt, is an
    interruption.
    """
    status = _status(error)
    try:
        record.log(status if _is_interruption(error) else f"failed: {error}")
        record.note(reason=_reason(error))
        record.finish(status)
    except RecordError as second:
        note(f"the record is not complete: {second}")
    _say_how_to_go_on(record, note, command)


@contextmanager
def recording(record: RunRecord, progress: Progress, command: str = RUN) -> Iterator[None]:
    """Call ``end_badly`` if the block raises, and close the progress display in any case."""
    try:
        yield
    except BaseException as error:
        end_badly(record, progress.note, error, command)
        raise
    finally:
        progress.close()


def end_elsewhere(output: str, error: BaseException) -> None:
    """Record how runs in a guest kernel ended, if the guest was killed before it could.

    ``output`` is the guest's standard error, which names the records. A record that already says how its run ended
    stays as it is.
    """

    def note(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    for path in _RECORD.findall(output):
        _end_running(Path(path), note, error)


def _end_running(path: Path, note: Callable[[str], None], error: BaseException) -> None:
    try:
        if Record(path).manifest.get("status") == "running":
            end_badly(RunRecord(path, keep=sys.maxsize), note, error)
    except RecordError as second:
        note(f"the record is not complete: {second}")


def _say_how_to_go_on(record: RunRecord, note: Callable[[str], None], command: str) -> None:
    try:
        done = record.checkpoint_round
    except RecordError:  # `end_badly` has reported why the record is broken
        return
    if done is not None and done < record.plan.job.rounds:
        note(f"to go on after round {done}: {command} --resume {record.path}")


def _is_interruption(error: BaseException) -> bool:
    return not isinstance(error, Exception)


def _status(error: BaseException) -> str:
    return "interrupted" if _is_interruption(error) else "failed"


def _reason(error: BaseException) -> str | None:
    return None if _is_interruption(error) else str(error)
