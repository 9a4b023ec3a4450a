"""Groups runs into cells: a verdict for each network, and a row for each transport there, including failures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from thalweg.report.numbers import divided, network_of, repair_of, spread, transport_of
from thalweg.report.senders import bbr_by_default, with_system
from thalweg.report.series import conditions
from thalweg.report.values import CellNumbers, Compared
from thalweg.ui.verdict import Verdict, verdict

if TYPE_CHECKING:
    from thalweg.plan import Plan

NO_REASON: Final = "its record does not say why"
FAILED: Final = "failed"


@dataclass(frozen=True)
class Lost:
    """A run that failed before it left a record: its plan, the path of the plan, and why it failed."""

    plan: Plan
    path: Path
    reason: str
    setting: str = ""
    #: The other system that was to do it; None for thalweg.
    system: str | None = None

    def numbers(self) -> Compared:
        """Return the numbers that a cell needs of the run."""
        plan = self.plan
        return Compared(
            record=str(self.path),
            status=FAILED,
            reason=self.reason,
            model=plan.label,
            clients=plan.job.clients,
            shape="star" if plan.job.graph is None else "graph",
            system=self.system,
            transport=self.system or transport_of(plan),
            network=network_of(plan),
            repair=repair_of(plan),
            setting=self.setting,
        )


@dataclass(frozen=True)
class Cell:
    """All runs with the same transport, network, model and number of clients.

    ``whole_rounds``: whether whole rounds are compared, because nothing else is known of other systems.
    """

    transport: str
    condition: str
    runs: Sequence[Compared]
    whole_rounds: bool = False

    @property
    def by_run(self) -> list[float]:
        """For each run with known times: the median over its rounds of what is compared, in seconds."""
        name = "seconds" if self.whole_rounds else "communication_seconds"
        each: Iterable[list[float | None]] = ([getattr(row, name) for row in run.each_round] for run in self.done)
        known = ([value for value in values if value is not None] for values in each)
        return [median(values) for values in known if values]

    @property
    def done(self) -> list[Compared]:
        """The runs that did not fail."""
        return [run for run in self.runs if run.status != FAILED]

    @property
    def failed(self) -> list[Compared]:
        """The runs that failed."""
        return [run for run in self.runs if run.status == FAILED]

    @property
    def reasons(self) -> list[str]:
        """The reasons of the failures, each once."""
        return list(dict.fromkeys(run.reason or NO_REASON for run in self.failed))

    def numbers(self) -> CellNumbers:
        """Return medians over rounds, with minimum and maximum, and medians over runs."""
        rounds = [row for run in self.done for row in run.each_round]
        bounds = [row.bound_seconds for row in rounds if row.bound_seconds is not None]
        return CellNumbers(
            transport=self.transport,
            network=self.condition,
            runs=len(self.done),
            failed=len(self.failed),
            reasons=self.reasons,
            seconds=spread(row.seconds for row in rounds),
            communication_seconds=spread(row.communication_seconds for row in rounds),
            bound_seconds=median(bounds) if bounds else None,
            share_of_bound=_median(divided(row.bound_seconds, row.communication_seconds) for row in rounds),
            goodput_bits_per_second=_median(row.goodput_bits_per_second for row in rounds),
            retransmissions=_median(run.retransmissions for run in self.done),
            records=[run.record for run in self.runs],
        )


def cells(runs: Sequence[Compared], lost: Sequence[Lost] = ()) -> list[Cell]:
    """Return the cells of runs and of those that left no record, the networks in their order, the fastest first."""
    every = [*runs, *(one.numbers() for one in lost)]
    there = conditions(every)
    by_cell: dict[tuple[str, str], list[Compared]] = defaultdict(list)
    for at, (run, condition) in enumerate(zip(every, there, strict=True)):
        beside = [
            (other.transport, other.congestion_control)
            for other, where in zip(runs, there, strict=False)
            if where == condition
        ]
        name = run.transport if at < len(runs) else with_system(run.transport, beside)
        by_cell[condition, name].append(run)
    order = list(dict.fromkeys(condition for condition, _ in by_cell))
    whole_rounds = any(run.system is not None for run in every)
    made = [Cell(transport, condition, members, whole_rounds) for (condition, transport), members in by_cell.items()]
    return sorted(made, key=lambda cell: (order.index(cell.condition), median(cell.by_run or [float("inf")])))


def verdicts(cells: Sequence[Cell]) -> dict[str, Verdict]:
    """Return the verdict for each network, by its name."""
    made = {}
    for condition in dict.fromkeys(cell.condition for cell in cells):
        there = [cell for cell in cells if cell.condition == condition]
        values = {cell.transport: cell.by_run for cell in there}
        made[condition] = verdict(values, {cell.transport: len(cell.failed) for cell in there})
    return made


def warnings(cells: Sequence[Cell]) -> list[str]:
    """Return warnings about runs whose comparison would mislead."""
    every = ((cell.transport, run.unasked_congestion_control) for cell in cells for run in cell.runs)
    return bbr_by_default(every)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
