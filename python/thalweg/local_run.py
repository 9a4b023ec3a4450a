"""``run``: a whole job on this machine from Python, as the command ``thalweg run`` does it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from thalweg.errors import PlanError

if TYPE_CHECKING:
    from thalweg.outcome import Entry, GraphSummary, Summary
    from thalweg.plan import Plan
    from thalweg.record import RunRecord

_log = logging.getLogger("thalweg")


@dataclass(frozen=True)
class RunResult:
    """The result of ``run``.

    ``record`` is the folder of the run's record. ``summary`` is the document that ``thalweg run --json`` prints
    (docs/reference/json.md): times in seconds, sizes in bytes, accuracy from 0 to 1.
    """

    record: Path
    summary: Summary | GraphSummary
    _rounds: RunRecord

    @property
    def rounds(self) -> list[Entry]:
        """The record's entry of each round (of a graph: of each iteration), in order, read anew from the record.

        Times are in seconds, sizes in bytes. Raises RecordError.
        """
        return list(self._rounds.rounds())

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of ``accuracy``, ``loss``, ``client_accuracy`` and ``client_loss``, of each that there is.

        Accuracies are from 0 to 1; the last two are means over the clients that evaluate their own models. Raises
        RecordError.
        """
        values: dict[str, float] = {}
        for entry in self._rounds.rounds():
            last = {
                "accuracy": entry.get("accuracy"),
                "loss": entry.get("loss"),
                "client_accuracy": entry.get("client_accuracy"),
                "client_loss": entry.get("client_loss"),
            }
            values |= {key: value for key, value in last.items() if value is not None}
        return values


def run(plan: Plan, *, resume: Path | str | None = None) -> RunResult:
    """Run a whole job on this machine, as ``thalweg run`` does, and return its result.

    The server is this process, and each client (of a graph: each node) has a process of its own, which has ended when
    ``run`` returns or raises. An app is given by its file, as ``Plan.of({"app": "my_app.py:App"})``. ``resume`` is a
    record whose last checkpoint the job continues from. What the command prints while it runs goes to the logger
    ``thalweg``.

    Raises PlanError for a plan that cannot run here, DataError, ModelError, MetricsError, AppError for an exception of
    the app at the server, LabError, BrokerError, LinkError, RecordError, and RoundError or CoreError of kind ``round``
    if the job cannot continue, as when an exception of the app ends the clients.
    """
    from thalweg.job.run import run as run_job
    from thalweg.lab import guest

    if guest.is_wanted(plan):
        raise PlanError(
            'network.clock = "virtual" runs a program inside a guest, which a call cannot be',
            "Write the plan to a file (Plan.to_toml) and run it with: thalweg run PLAN.toml",
        )
    result = run_job(plan, _Logged(), resume=None if resume is None else Path(resume))
    return RunResult(result.record.path, result.table(), result.record)


class _Logged:
    """Writes the progress of a job to the logger ``thalweg``."""

    shows_training = False

    def __init__(self) -> None:
        self._total: int | None = None
        self._on_graph = False

    def note(self, text: str) -> None:
        _log.info("%s", text)

    def begin(self, number: int, rounds: int | None) -> None:
        del number
        self._total = rounds

    def observe(self, state: str) -> None:
        """Ignore the state of single clients."""

    def trained(self, client: str, number: int, fraction: float) -> None:
        """Ignore the state of single clients."""

    def end(self, entry: Entry) -> None:
        from thalweg.ui.progress import iteration_line, round_line

        _log.info("%s", (iteration_line if "nodes" in entry else round_line)(entry, self._total))

    def close(self) -> None:
        """Do nothing, as there is no terminal to restore."""
