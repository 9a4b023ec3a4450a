"""Starts the trackers of a run (``--track``), tells them of each round, and notes those that fail.

Each is a process (``thalweg.trackers.process``) that reads the run's journal. A write to it never waits, so no tracker
can hold up a round. ``thalweg.trackers`` has the trackers themselves.
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

# Seconds that all trackers together have to write what waits when a run has ended, and after a signal.
END_SECONDS: Final = 60.0
HURRIED_SECONDS: Final = 1.5
# If they take longer than this, a note says so.
NOTED_SECONDS: Final = 2.0
PROGRAM: Final = "thalweg.trackers.process"
LONGEST_REASON: Final = 4096


class _Follower:
    """The process of a tracker, which ``words`` name as in the plan."""

    def __init__(self, words: str, record: RunRecord, after: int) -> None:
        """Start the process, which begins after the round ``after``. Raises OSError."""
        self.words = words
        told, own_told = os.pipe()
        own_report, report = os.pipe()
        self._told, self._report = own_told, own_report
        for descriptor in (own_told, own_report):
            os.set_blocking(descriptor, False)
        try:
            with record.log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", PROGRAM, words, str(record.path), str(after)],
                    stdin=told,
                    stdout=report,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError:
            self._close()
            raise
        finally:
            os.close(told)
            os.close(report)

    def tell(self, word: str = "") -> bool:
        """Say that there is a round to read, or with a ``word`` how the run ended. False if the process has failed."""
        try:
            os.write(self._told, f"{word}\n".encode())
        except BlockingIOError:
            pass  # it is behind. It reads all rounds there are when it comes to the lines that wait.
        except OSError:
            return False
        return True

    def has_ended(self, seconds: float) -> bool:
        """Wait at most so long for the process's end."""
        try:
            self._process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return False
        return True

    def reap(self) -> str | None:
        """End the process, if it has not ended; return why it failed, or None if it did its work."""
        ended = self.has_ended(0)
        if not ended:
            self._process.kill()
        code = self._process.wait()
        try:
            said = os.read(self._report, LONGEST_REASON).decode(errors="replace").strip()
        except OSError:
            said = ""
        self._close()
        if not ended:
            return said or "it did not end in time"
        return None if code == 0 else said or f"it ended with exit code {code}"

    def _close(self) -> None:
        for descriptor in (self._told, self._report):
            os.close(descriptor)


class _Followers:
    """The trackers of a run that have not failed. ``note`` gets a line for each that does."""

    def __init__(self, trackers: Sequence[str], record: RunRecord, after: int, note: Callable[[str], None]) -> None:
        self._note = note
        started = [self._start(words, record, after) for words in trackers]
        self._running = [follower for follower in started if follower is not None]

    def _start(self, words: str, record: RunRecord, after: int) -> _Follower | None:
        try:
            return _Follower(words, record, after)
        except OSError as error:
            self._note(f"the tracker {words} cannot be started, and the job goes on without it: {error}")
            return None

    def tell(self, word: str = "") -> None:
        """Tell all of them; drop those that have failed."""
        for follower in [one for one in self._running if not one.tell(word)]:
            follower.has_ended(HURRIED_SECONDS)  # its pipe is closed, so it is ending
            self._running.remove(follower)
            self._note(f"the tracker {follower.words} has failed, and the job goes on without it: {follower.reap()}")

    def end(self, status: str) -> None:
        """Say how the run ended, and wait a limited time for them to write what waits."""
        self.tell(status)
        began = monotonic()
        deadline = began + within(END_SECONDS, HURRIED_SECONDS)
        noted = min(deadline, began + NOTED_SECONDS)
        slow = [one.words for one in self._running if not one.has_ended(noted - monotonic())]
        if slow and noted < deadline:
            self._note(f"waiting for {', '.join(slow)} to write what waits, at most {END_SECONDS:.0f} s")
        for follower in self._running:
            follower.has_ended(deadline - monotonic())
            reason = follower.reap()
            if reason is not None:
                self._note(f"the tracker {follower.words} has failed: {reason}")


def begin(trackers: Sequence[str], record: RunRecord, note: Callable[[str], None]) -> Callable[[str], None]:
    """Give the rounds of ``record`` to ``trackers`` from now on; return the function that ends this.

    That function takes the status of the run: complete, failed or interrupted. It waits a limited time for the trackers
    to write what waits. ``note`` gets a line for each tracker that fails; the record's log gets it too. Nothing that a
    tracker does raises.
    """
    if not trackers:
        return lambda _status: None

    def say(text: str) -> None:
        record.log(text)
        note(text)

    followers = _Followers(trackers, record, int(record.manifest.get("resumed_after_round") or 0), say)
    followers.tell()
    record.watch(lambda _entry: followers.tell())
    return followers.end


def status_of(error: BaseException | None) -> str:
    """Return the status of a run that ended with this exception, or without one."""
    return "complete" if error is None else "failed" if isinstance(error, Exception) else "interrupted"


@contextmanager
def tracking(trackers: Sequence[str], record: RunRecord, note: Callable[[str], None]) -> Iterator[None]:
    """Give the rounds of ``record`` to ``trackers`` while the block runs, and at its end how the run ended.

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
