"""The record of a job that Python code drives through ``thalweg.Server``: the same as that of ``thalweg run``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from thalweg import _core, machine
from thalweg.apps import name_of
from thalweg.job.parties import bytes_of
from thalweg.plan.bound import bound_of
from thalweg.record import RunRecord, entry
from thalweg.ui.progress import round_line

if TYPE_CHECKING:
    from thalweg.job.attendance import Attendance
    from thalweg.plan import Plan

# How many rounds there will be is not known when a record is opened to go on with.
MOST: Final = 2**32 - 1


class Recording:
    """A record that grows by a round at a time, with the global model of the last as its checkpoint."""

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
    ) -> None:
        """Make a record in the folder that the plan says, or go on with ``resume``, whose model goes into the arena.

        ``attendance`` is told by others of each round. Raises RecordError.
        """
        layout = arena.layout.tensors
        self.done = 0
        if resume is None:
            bound = bound_of(plan, url, len(arena))
            facts = {
                "address": address,
                "tls": plan.security.pki is not None,
                "bound": bound.facts(),
                "update_bytes": len(arena),
                "tensors": len(layout),
                "app": {"object": name_of(app), "file": _file_of(app)},
            }
            self.record = RunRecord.create(plan, facts)
        else:
            self.record = RunRecord.resume(resume, plan.merge({"job.rounds": MOST}))
            try:
                self.done = self.record.restore(layout, bytes_of(arena))
            except BaseException:
                self.record.close()
                raise
        self._arena, self._attendance, self._cpu = arena, attendance, machine.cpu_seconds()
        self._open = True
        self.expect(self.done + 1)

    def expect(self, rounds: int) -> None:
        """Keep in the plan that there will be so many rounds. Raises RecordError."""
        self.record.replan(self.record.plan.merge({"job.rounds": rounds}))

    def keep(self, outcome: Mapping[str, Any], evaluation: Mapping[str, Any], seconds: float | None) -> None:
        """Keep a round, what was evaluated in so many seconds, and its model. Raises RecordError."""
        row = entry(outcome, evaluation, seconds)
        number = int(row["round"])
        if number > self.record.plan.job.rounds:
            self.expect(number)
        self.record.append(row)
        self.record.log(round_line(row, self.record.plan.job.rounds))
        self.record.save(number, self._arena.layout.tensors, bytes_of(self._arena))
        self.done = number

    def finish(self, status: str, reason: str | None = None) -> None:
        """Write how it ended, and the tables. Does nothing the second time. Raises RecordError."""
        if not self._open:
            return
        self._open = False
        if reason is not None:
            self.record.log(reason)
        own = {"cpu_seconds": machine.cpu_seconds(self._cpu), "peak_rss_bytes": machine.peak_rss_bytes()}
        used = [("server", own), *((name, self._attendance.use_of(name)) for name in self._attendance.names())]
        self.record.table("parties", [{"party": name, **row} for name, row in used])
        self.record.finish(status)


def _file_of(app: Any) -> str | None:
    try:
        return inspect.getsourcefile(app if isinstance(app, type) else type(app))
    except TypeError:
        return None
