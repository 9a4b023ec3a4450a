"""Runs the missing runs of a bench, one after the other, and writes the results."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeAlias

from thalweg import machine
from thalweg.bench import results
from thalweg.bench.answers import answers
from thalweg.bench.estimate import Estimate
from thalweg.bench.folder import PAGE, RESULTS, TABLE, Folder
from thalweg.bench.matrix import Cell, Matrix
from thalweg.bench.measure import measure
from thalweg.bench.process import Failure, execute
from thalweg.bench.show import Progress, duration, run_line
from thalweg.bench.systems import System
from thalweg.bench.values import CellPreview, Outcome, Preview, Results, RunNumbers, SkippedCell
from thalweg.errors import PlanError, RecordError, ThalwegError
from thalweg.plan import Plan
from thalweg.report.cells import NO_REASON, Lost
from thalweg.ui import strict_json

# Runs a plan by a system, with a log file and a limit in seconds, and returns the same as ``process.execute``.
Execute: TypeAlias = Callable[[Path, Path, float | None, System | None], Failure | None]


def name_of(cell: Cell, repetition: int) -> str:
    """Return the name of a run's files, without the ending."""
    return f"{cell.number:04}.{repetition}"


@dataclass(frozen=True)
class Bench:
    """A bench with its folder and its matrix."""

    folder: Folder
    matrix: Matrix

    def outcomes(self) -> dict[str, Outcome]:
        """Return the outcome of each run that has ended, by name. Raises RecordError for a damaged one."""
        names = (name_of(cell, repetition) for repetition, cell in self.matrix.runs())
        outcomes = ((name, self.folder.outcome(name)) for name in names)
        return {name: outcome for name, outcome in outcomes if outcome is not None}

    def missing(self, outcomes: Mapping[str, Outcome], *, retry: bool = False) -> list[tuple[int, Cell]]:
        """Return the runs that have not ended yet, in their order; with ``retry`` also those that failed."""

        def done(name: str) -> bool:
            return name in outcomes and not (retry and outcomes[name].status == "failed")

        runs = self.matrix.runs()
        return [(repetition, cell) for repetition, cell in runs if not done(name_of(cell, repetition))]

    def estimate(self, outcomes: Mapping[str, Outcome]) -> Estimate:
        """Return an estimate of how long runs take, from the runs so far."""
        made = Estimate(self.matrix.cells)
        for outcome in outcomes.values():
            if outcome.status == "complete":
                made.took(outcome.cell, outcome.seconds)
        return made

    def run(self, progress: Progress, *, retry: bool = False, execute: Execute = execute) -> Results:
        """Run the missing runs and return the results. If a run fails, its reason is stored, and the next run starts.

        After an interruption the results so far are written. Raises RecordError if files cannot be written.
        """
        with self.folder.alone():
            outcomes = self.outcomes()
            missing = self.missing(outcomes, retry=retry)
            estimate = self.estimate(outcomes)
            total = len(outcomes) + sum(name_of(cell, number) not in outcomes for number, cell in missing)
            try:
                for at, (repetition, cell) in enumerate(missing):
                    done, what = total - len(missing) + at, f"repetition {repetition}: {cell.label}"
                    progress.begin(done, total, what, left_words(estimate, missing[at:]))
                    outcome = self._one(cell, repetition, execute)
                    outcomes[name_of(cell, repetition)] = outcome
                    if outcome.status == "complete":
                        estimate.took(cell.number, outcome.seconds)
                    left = left_words(estimate, missing[at + 1 :])
                    progress.note(run_line(done + 1, total, what, outcome, left))
            finally:
                progress.close()
                results = self.write()
        return results

    def _one(self, cell: Cell, repetition: int, execute: Execute) -> Outcome:
        """Run a cell once and store its outcome. An interrupted run stores nothing, so it is run again later."""
        name = name_of(cell, repetition)
        records = self.folder.under_way(name)
        text = cell.in_repetition(repetition, str(records)).to_toml()
        plan = self.folder.write(f"cells/{name}.toml", text)
        started, began = datetime.now(timezone.utc), time.monotonic()
        failure = execute(plan, self.folder.cells / f"{name}.log", self.matrix.plan.limit, cell.system)
        seconds = time.monotonic() - began
        record = self.folder.settle(name)
        judged = _judge(failure, record)
        failed = isinstance(judged, ThalwegError)
        outcome = Outcome(
            cell=cell.number,
            repetition=repetition,
            settings=dict(cell.settings),
            status="failed" if failed else "complete",
            reason=str(judged) if failed else None,
            numbers=None if isinstance(judged, ThalwegError) else judged,
            started=started.isoformat(timespec="milliseconds"),
            seconds=seconds,
            record=None if record is None else str(record.relative_to(self.folder.path)),
        )
        self.folder.end(name, outcome)
        return outcome

    def results(self) -> Results:
        """Return the results so far, in the form of ``bench.json``. Raises RecordError if a run's file is damaged."""
        outcomes = self.outcomes()
        plan = self.matrix.plan
        left = len(self.missing(outcomes))
        rows = results.cells(self.matrix, outcomes.values())
        facts = machine.facts()
        return Results(
            folder=str(self.folder.path),
            status="incomplete" if left else "complete",
            left=left,
            failed=sum(outcome.status == "failed" for outcome in outcomes.values()),
            repetitions=plan.repetitions,
            seed=plan.seed,
            accounting=self.matrix.accounting,
            axes={axis: list(values) for axis, values in self.matrix.axes.items()},
            answers=answers(rows, self.matrix.accounting),
            cells=rows,
            runs=[outcome for _, outcome in sorted(outcomes.items())],
            thalweg=machine.build(),
            kernel=facts.kernel,
            machine=facts.machine,
            versions=facts.versions,
        )

    def write(self) -> Results:
        """Write ``bench.json`` and ``bench.csv``; return the content of ``bench.json``. Raises RecordError."""
        bench_results = self.results()
        self.folder.write(RESULTS, strict_json.dumps(bench_results, indent=1) + "\n")
        self.folder.write(TABLE, results.to_csv(self.matrix.axes, bench_results.cells))
        return bench_results

    def page(self) -> Path | None:
        """Write the report page of all runs; return None if no run has ended. Raises RecordError."""
        from thalweg.report import report

        outcomes = self.outcomes()
        records = [self.folder.path / outcome.record for outcome in outcomes.values() if outcome.record]
        if not outcomes:
            return None
        report(sorted(records), self.folder.path / PAGE, lost=list(self._lost(outcomes)))
        return self.folder.path / PAGE

    def _lost(self, outcomes: Mapping[str, Outcome]) -> Iterator[Lost]:
        """Yield the runs that failed before they had a record."""
        by_number = {cell.number: cell.system for cell in self.matrix.cells}
        for name, outcome in outcomes.items():
            if outcome.status == "failed" and not outcome.record:
                path = self.folder.cells / f"{name}.toml"
                system = by_number.get(outcome.cell)
                named = None if system is None else system.name
                yield Lost(Plan.load(path), path, outcome.reason or NO_REASON, system=named)

    def preview(self) -> Preview:
        """Return the runs that would be run, and how long they may take."""
        outcomes = self.outcomes() if self.folder.is_bench else {}
        missing = self.missing(outcomes)
        estimate = self.estimate(outcomes)
        counts = Counter(cell.number for _, cell in missing)
        return Preview(
            repetitions=self.matrix.plan.repetitions,
            runs=len(missing),
            estimate_seconds=estimate.left(counts),
            estimate_is_measured=estimate.is_measured,
            cells=[
                CellPreview(
                    cell=cell.number,
                    settings=dict(cell.settings),
                    runs=counts[cell.number],
                    estimate_seconds=estimate.cell(cell.number),
                )
                for cell in self.matrix.cells
            ],
            skipped=[SkippedCell(one.number, dict(one.settings), one.reason) for one in self.matrix.skipped],
        )


def left_words(estimate: Estimate, missing: Sequence[tuple[int, Cell]]) -> str:
    """Return the text on how long the remaining runs may take."""
    if not missing:
        return "nothing left"
    seconds = estimate.left(Counter(cell.number for _, cell in missing))
    if estimate.is_measured:
        return f"about {duration(seconds)} left"
    return f"at least {duration(seconds)} left" if seconds else "no estimate yet"


def _judge(failure: Failure | None, record: Path | None) -> RunNumbers | ThalwegError:
    """Return the numbers of a run, or why it failed."""
    if failure is not None:
        return ThalwegError(failure.cause, failure.hint)
    if record is None:
        return ThalwegError("it left no record", "See its log")
    try:
        return measure(record)
    except (RecordError, PlanError) as broken:
        return broken
