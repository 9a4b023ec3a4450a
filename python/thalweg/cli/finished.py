"""What ``--resume`` does with the record of a job whose rounds are all done."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thalweg.plan import Plan


def is_finished(resume: Path | None, plan: Plan, *, complete_it: bool = True) -> bool:
    """Return whether the record ``resume`` needs no process any more: it has all rounds of ``plan``, and is complete.

    A process that was killed after its last round has left a record that has all rounds, but no tables and no end. With
    ``complete_it`` they are written now. Raises RecordError.
    """
    from thalweg.record import Record, RunRecord

    if resume is None or not (record := Record(resume)).has_all_rounds(plan):
        return False
    if record.manifest["status"] == "complete":
        return True
    if complete_it:
        RunRecord.resume(resume, plan).finish("complete")
    return complete_it


def say_so(resume: Path, plan: Plan, emit: Callable[[object], None]) -> None:
    """Print that the job of the record ``resume`` is finished: a line for people, and a document for ``--json``."""
    from thalweg.record import Record

    rounds = Record(resume).rounds_to_keep(plan)  # the record may have more than the plan asks for
    sys.stderr.write(f"all {rounds} rounds of {resume} are done; ask for more with --rounds {rounds + 1}\n")
    emit({"record": str(resume), "status": "complete", "rounds_done": rounds})
