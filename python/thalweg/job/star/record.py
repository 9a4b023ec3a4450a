"""The record of a job whose rounds a program runs through ``thalweg.Server``. Its format is that of ``thalweg run``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from thalweg import _core, machine
from thalweg.apps import name_of
from thalweg.job.common import tracking
from thalweg.job.common.parties import Metrics, bytes_of
from thalweg.outcome.core import Outcome
from thalweg.plan.bound import bound_of
from thalweg.plan.run_facts import RunFacts
from thalweg.record import RunRecord, entry
from thalweg.record.rows import party_row
from thalweg.ui.progress import round_line

if TYPE_CHECKING:
    from thalweg.job.star.attendance import Attendance
    from thalweg.plan import Plan
    from thalweg.tensors.arena import Arena

# The number of rounds in the plan of a record that is being resumed. ``expect`` then sets the real number.
MAX_ROUNDS: Final = 2**32 - 1


class Recording:
    """A record that gets one round at a time. Its checkpoint is the global model after the last round."""

    def __init__(
        self,
        plan: Plan,
        arena: _core.Arena,
        url: str,
        address: str,
        *,
        app: Any,
        resume: Path | None,
        attendance: Attendance,
        note: Callable[[str], None],
    ) -> None:
        """Make a record in the plan's folder, or open ``resume`` and load its checkpoint into the arena.

        The caller adds each round to ``attendance``; this object only reads it. The plan's trackers get each round, and
        ``note`` gets a line for each tracker that fails. Raises RecordError.
        """
        layout = arena.layout.tensors
        self.done = 0
        if resume is None:
            bound = bound_of(plan, url, len(arena))
            facts: RunFacts = {
                "address": address,
                "tls": plan.security.pki is not None,
                "bound": bound,
                "update_bytes": len(arena),
                "tensors": len(layout),
                "app": {"object": name_of(app), "file": _file_of(app)},
            }
            self.record = RunRecord.create(plan, facts)
        else:
            self.record = RunRecord.resume(resume, plan.merge({"job.rounds": MAX_ROUNDS}))
            try:
                self.done = self.record.restore(layout, bytes_of(arena))
            except BaseException:
                self.record.close()
                raise
        self._arena, self._attendance, self._cpu = arena, attendance, machine.cpu_seconds()
        self._open = True
        self.expect(self.done + 1)
        self._end_trackers = tracking.begin(plan.record.track, self.record, note)

    def expect(self, rounds: int) -> None:
        """Set the number of rounds in the record's plan. Raises RecordError."""
        self.record.replan(self.record.plan.merge({"job.rounds": rounds}))

    def keep(self, outcome: Outcome, evaluation: Metrics, seconds: float | None, state: Arena | None = None) -> None:
        """Record a round and its evaluation, which took ``seconds``, and write the model as a checkpoint.

        ``state`` is the state of the server's algorithm. Raises RecordError.
        """
        row = entry(outcome, evaluation, seconds)
        number = int(row["round"])
        if number > self.record.plan.job.rounds:
            self.expect(number)
        self.record.append(row)
        self.record.log(round_line(row, self.record.plan.job.rounds))
        self.record.save(number, self._arena.layout.tensors, bytes_of(self._arena), state)
        self.done = number

    def finish(self, status: str, reason: str | None = None) -> None:
        """Write how the job ended, and the tables. Does nothing on a second call. Raises RecordError."""
        if not self._open:
            return
        self._open = False
        if reason is not None:
            self.record.log(reason)
        own = machine.usage(self._cpu)
        used = [("server", own), *((name, self._attendance.usage_of(name)) for name in self._attendance.names())]
        self.record.parties([party_row(name, usage) for name, usage in used])
        self._end_trackers(status)
        self.record.finish(status)


def _file_of(app: Any) -> str | None:
    try:
        return inspect.getsourcefile(app if isinstance(app, type) else type(app))
    except TypeError:
        return None
