"""A tracker's process: ``python -m thalweg.trackers.process WORDS RECORD AFTER``.

It reads the record's journal from the round after AFTER on. Each line of standard input says that there is more to
read; a line with a word is the run's status, which ends it. If the input ends without a status, the run was killed.
When it fails it writes one line with the reason to standard output, and its exit code is 1.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final

from thalweg import _core
from thalweg.outcome import Entry
from thalweg.record import Record
from thalweg.record.folder import JOURNAL
from thalweg.record.journal import Follower
from thalweg.record.tables import restored
from thalweg.trackers import Run, Setting, Tracker, tracker_of

KILLED: Final = "killed"
# The process leaves processor time to the job.
NICE: Final = 5
LONGEST_REASON: Final = 1000


def run_of(record: Record, after: int) -> Run:
    """Return what trackers learn of a run that goes on after the round ``after``. Raises RecordError."""
    began = record.manifest.get("clock_began")
    # What a tracker is called may name a user and a password: it is not told of the others.
    plan = record.plan.model_dump(mode="json", exclude={"record": {"track"}})
    settings = dict(_flat(plan))
    at = datetime.fromisoformat(began).timestamp() if isinstance(began, str) else None
    return Run(record.path.name, settings, at, after)


def _flat(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Setting]]:
    """Yield the values of nested tables by their paths, without those that are None. Lists become text."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{key}.")
        elif value is not None:
            yield f"{path}{key}", value if isinstance(value, (str, int, float, bool)) else str(value)


def follow(tracker: Tracker, run: Run, rounds: Iterator[Entry], told: IO[bytes]) -> None:
    """Give a tracker all rounds after ``run.after``, whenever ``told`` has a line; end it with the status."""
    tracker.begin(run)
    status = KILLED
    for line in told:
        status = line.strip().decode(errors="replace") or KILLED
        for entry in rounds:
            if entry["round"] > run.after:
                tracker.round(entry)
        if status != KILLED:
            break
    tracker.end(status)


def main() -> int:
    """Follow a journal until the run ends; return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which then says how the run ended
    words, folder, after = sys.argv[1:]
    # Packages of trackers print: that goes to the log of the run, as standard error does.
    report = os.dup(1)
    os.dup2(2, 1)
    os.nice(NICE)
    try:
        record = Record(Path(folder))
        with Follower(record.path / JOURNAL) as rows:
            follow(tracker_of(words), run_of(record, int(after)), map(restored, rows), sys.stdin.buffer)
    except BaseException as error:  # noqa: BLE001 - whatever a package raises, SystemExit too, is the reason
        reason = _core.plain_text(f"{type(error).__name__}: {error}", LONGEST_REASON)
        os.write(report, f"{reason}\n".encode())
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.exit(code)
