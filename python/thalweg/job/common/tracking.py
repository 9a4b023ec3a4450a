"""Starts the trackers of a run (``--track``), tells them of each round, and notes those that fail.

Each tracker is a process (``thalweg.trackers.process``) that reads the run's journal. Notifying it never blocks, so no
tracker can delay a round. ``thalweg.trackers`` has the trackers themselves.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Final

from thalweg.machine.grace import within
from thalweg.record import RunRecord

# Seconds that all trackers together have to write the remaining rounds when a run has ended, and after a signal.
END_SECONDS: Final = 60.0
HURRIED_SECONDS: Final = 1.5
# If they take longer than this, a note says so.
NOTED_SECONDS: Final = 2.0
PROGRAM: Final = "thalweg.trackers.process"
LONGEST_REASON: Final = 4096


class _TrackerProcess:
    """The process of a tracker. ``words`` is the tracker as the plan names it."""

    def __init__(self, words: str, record: RunRecord, after: int) -> None:
        """Start the process, which begins after the round ``after``. Raises OSError."""
        self.words = words
        notices, self._notices = os.pipe()
        self._report, report = os.pipe()
        for descriptor in (self._notices, self._report):
            os.set_blocking(descriptor, False)
        try:
            with record.log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", PROGRAM, words, str(record.path), str(after)],
                    stdin=notices,
                    stdout=report,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError:
            self._close()
            raise
        finally:
            os.close(notices)
            os.close(report)

    def tell(self, word: str = "") -> bool:
        """Notify it of a new round, or with ``word`` of how the run ended. Return False if the process has failed."""
        try:
            os.write(self._notices, f"{word}\n".encode())
        except BlockingIOError:
            pass  # the pipe is full. For each line in it the process reads all rounds that the journal has by then.
        except OSError:
            return False
        return True

    def has_ended(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for the process to end; return whether it has ended."""
        try:
            self._process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return False
        return True

    def reap(self) -> str | None:
        """Kill the process if it has not ended; return why it failed, or None if it has not failed."""
        ended = self.has_ended(0)
        if not ended:
            self._process.kill()
        code = self._process.wait()
        try:
            reason = os.read(self._report, LONGEST_REASON).decode(errors="replace").strip()
        except OSError:
            reason = ""
        self._close()
        if not ended:
            return reason or "it did not end in time"
        return None if code == 0 else reason or f"it ended with exit code {code}"

    def _close(self) -> None:
        for descriptor in (self._notices, self._report):
            os.close(descriptor)


class _TrackerProcesses:
    """The trackers of a run that have not failed. ``note`` gets a line for each one that fails."""

    def __init__(self, trackers: Sequence[str], record: RunRecord, after: int, note: Callable[[str], None]) -> None:
        self._note = note
        started = [self._start(words, record, after) for words in trackers]
        self._running = [tracker for tracker in started if tracker is not None]

    def _start(self, words: str, record: RunRecord, after: int) -> _TrackerProcess | None:
        try:
            return _TrackerProcess(words, record, after)
        except OSError as error:
            self._note(f"the tracker {words} cannot be started, and the job goes on without it: {error}")
            return None

    def tell(self, word: str = "") -> None:
        """Notify all of them; drop those that have failed."""
        for tracker in [one for one in self._running if not one.tell(word)]:
            tracker.has_ended(HURRIED_SECONDS)  # its pipe is closed, so it is ending
            self._running.remove(tracker)
            self._note(f"the tracker {tracker.words} has failed, and the job goes on without it: {tracker.reap()}")

    def end(self, status: str) -> None:
        """Notify them of how the run ended, and wait a limited time until they have written all rounds."""
        self.tell(status)
        began = monotonic()
        deadline = began + within(END_SECONDS, HURRIED_SECONDS)
        noted = min(deadline, began + NOTED_SECONDS)
        slow = [one.words for one in self._running if not one.has_ended(noted - monotonic())]
        if slow and noted < deadline:
            self._note(f"waiting for {', '.join(slow)} to write the last rounds, at most {END_SECONDS:.0f} s")
        for tracker in self._running:
            tracker.has_ended(deadline - monotonic())
            reason = tracker.reap()
            if reason is not None:
                self._note(f"the tracker {tracker.words} has failed: {reason}")


def begin(trackers: Sequence[str], record: RunRecord, note: Callable[[str], None]) -> Callable[[str], None]:
    """Start ``trackers``, which get each round of ``record`` from now on; return the function that ends them.

    That function takes the status of the run: complete, failed or interrupted. It waits a limited time until the
    trackers have written all rounds. ``note`` and the record's log get a line for each tracker that fails. A failure of
    a tracker never raises here.
    """
    if not trackers:
        return lambda _status: None

    def say(text: str) -> None:
        record.log(text)
        note(text)

    processes = _TrackerProcesses(trackers, record, int(record.manifest.get("resumed_after_round") or 0), say)
    processes.tell()
    record.watch(lambda _entry: processes.tell())
    return processes.end


def status_of(error: BaseException | None) -> str:
    """Return the status of a run that ended with ``error``, or without one."""
    return "complete" if error is None else "failed" if isinstance(error, Exception) else "interrupted"


@contextmanager
def tracking(trackers: Sequence[str], record: RunRecord, note: Callable[[str], None]) -> Iterator[None]:
    """Give ``trackers`` each round of ``record`` while the block runs, and at its end the run's status.

    ``note`` is as for ``begin``.
    """
    end = begin(trackers, record, note)
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        end(status_of(error))
