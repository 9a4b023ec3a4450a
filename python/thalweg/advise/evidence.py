"""Finds measured runs in folders, and groups them by condition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from thalweg import extras
from thalweg.advise.condition import Condition, condition_of
from thalweg.bench.folder import Folder
from thalweg.bench.measure import numbers
from thalweg.bench.values import ByKind, RunNumbers
from thalweg.errors import RecordError, ThalwegError
from thalweg.plan import Plan
from thalweg.plan.least import least_seconds
from thalweg.record.facts import Facts
from thalweg.report.numbers import divided, network, transport, transport_of
from thalweg.report.senders import congestion, default_congestion, with_system
from thalweg.report.source import Run, read_run

NOT_KNOWN: Final = "not known"


@dataclass(frozen=True)
class Measured:
    """One run. ``numbers`` are from ``bench.measure``. If it failed they are None, and ``reason`` says why.

    ``emulation`` is None if the run failed before its emulation was known.
    """

    transport: str
    scheme: str
    emulation: str | None
    condition: Condition
    numbers: RunNumbers | None
    seconds: float | None
    least_seconds: float
    reason: str | None = None
    congestion: str | None = None
    # The congestion control of the run, if it is the default of the system and not the plan's choice.
    default_congestion: str | None = None


class Found(NamedTuple):
    """A run in a folder: its record if it has one, its duration in seconds, and why it failed, if it did.

    ``plan`` is the file of its plan if there is no record.
    """

    record: Path | None
    seconds: float | None = None
    reason: str | None = None
    plan: Path | None = None

    @property
    def path(self) -> Path:
        """The path that identifies the run: the path of its record, or of its plan if there is no record."""
        return (self.record or self.plan or Path()).resolve()


@dataclass(frozen=True)
class Group:
    """All runs of one condition with one kind of emulation, by transport."""

    condition: Condition
    emulation: str
    runs: Mapping[str, Sequence[Measured]]

    @property
    def compared(self) -> list[str]:
        """Transports that have a run with numbers."""
        return [name for name, runs in self.runs.items() if any(run.numbers is not None for run in runs)]


def gather(paths: Iterable[Path]) -> tuple[list[Measured], dict[str, str]]:
    """Return the runs in folders, and for each run that cannot be used its path and the reason.

    Raises RecordError for a path that is not a folder, and for a damaged bench; PackageError without pyarrow.
    """
    extras.require("reading records", "pyarrow")
    measured: list[Measured] = []
    left_out: dict[str, str] = {}
    for path, one in {one.path: one for one in _records(paths)}.items():
        why = None
        try:
            if one.record is None:
                measured.append(_never_began(path, one.reason))
            else:
                run = read_run(path)
                why = _why_not(run)
                measured += [_measured(run, one)] if why is None else []
        except ThalwegError as error:
            why = str(error)
        if why is not None:
            left_out[str(path)] = why
    return measured, left_out


def groups(runs: Iterable[Measured]) -> list[Group]:
    """Group runs by condition, emulation and transport.

    Runs that failed before their emulation was known belong to each group of their condition.
    """
    by_condition: dict[tuple[Condition, str], dict[str, list[Measured]]] = defaultdict(lambda: defaultdict(list))
    unknown: list[Measured] = []
    for run in runs:
        if run.emulation is None:
            unknown.append(run)
        else:
            by_condition[run.condition, run.emulation][run.transport].append(run)
    for run in unknown:
        levels = [level for condition, level in by_condition if condition == run.condition] or [NOT_KNOWN]
        for level in levels:
            there = by_condition[run.condition, level]
            there[with_system(run.transport, map(_named, chain.from_iterable(there.values())))].append(run)
    return [Group(condition, level, dict(by)) for (condition, level), by in by_condition.items()]


def _named(run: Measured) -> tuple[str, str | None]:
    return run.transport, run.congestion


def _records(paths: Iterable[Path]) -> Iterator[Found]:
    """Yield the runs in folders. For a bench this includes how long each took, and failed runs without a record."""
    for path in paths:
        folder = Folder(path)
        if not path.is_dir():
            raise RecordError(f"{path} is not a folder", "Name the folder of a bench, of a run's record, or of several")
        if folder.is_bench:
            yield from _of_bench(folder)
        elif (path / "plan.toml").is_file():
            yield Found(path)
        else:
            inner = sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))
            for one in inner:
                if Folder(one).is_bench:
                    yield from _of_bench(Folder(one))
                elif (one / "plan.toml").is_file():
                    yield Found(one)


def _of_bench(folder: Folder) -> Iterator[Found]:
    records = folder.records.iterdir() if folder.records.is_dir() else ()
    left = {path.name: path for path in records if not path.name.startswith(".")}
    plans = {path.stem: path for path in folder.cells.glob("*.toml")}
    for name in sorted({*left, *plans}):
        outcome = folder.outcome(name)
        failed = outcome is not None and outcome.status == "failed"
        if name in left or failed:
            reason = outcome.reason if outcome is not None and failed else None
            yield Found(left.get(name), None if outcome is None else outcome.seconds, reason, plans.get(name))


def _why_not(run: Run) -> str | None:
    if run.plan.job.graph is not None:
        return "it has no server, and exchanges of its nodes are no rounds"
    if run.system is not None:
        return f"{run.system} did its rounds, and not thalweg"
    if network(run) == "real network":
        return "it ran over a real network, of which the record says too little"
    return f"it is {run.status}" if run.status not in ("complete", "failed") else None


def _measured(run: Run, found: Found) -> Measured:
    done = run.status == "complete" and found.reason is None
    return Measured(
        transport=transport(run),
        scheme=run.plan.scheme,
        emulation=run.emulation.partition(":")[0],
        condition=condition_of(run.plan, run.manifest.whole("update_bytes")),
        numbers=numbers(run) if done else None,
        seconds=found.seconds if found.seconds is not None else _elapsed(run.manifest),
        least_seconds=least_seconds(run.plan),
        reason=None if done else found.reason or run.reason,
        congestion=congestion(run),
        default_congestion=default_congestion(run),
    )


def _never_began(path: Path, reason: str | None) -> Measured:
    """Return a run that failed before it left a record; its condition comes from its plan."""
    plan = Plan.load(path)
    return Measured(
        transport=transport_of(plan),
        scheme=plan.scheme,
        emulation=None,
        condition=condition_of(plan),
        numbers=None,
        seconds=None,
        least_seconds=least_seconds(plan),
        reason=reason,
    )


def _elapsed(manifest: Facts) -> float | None:
    try:
        begin, end = (datetime.fromisoformat(manifest.text(key) or "") for key in ("started", "ended"))
    except ValueError:
        return None
    return (end - begin).total_seconds()


def communication(run: Measured) -> float | None:
    """Return the median seconds of communication in a run's rounds, or None."""
    rounds = [] if run.numbers is None else run.numbers.rounds
    known = [row.communication_seconds for row in rounds if row.communication_seconds is not None]
    return median(known) if known else None


def incomplete(run: Measured) -> int:
    """Return how many of a run's rounds ended without all whole updates."""
    return 0 if run.numbers is None else sum(not row.complete for row in run.numbers.rounds)


def wire(run: Measured) -> float | None:
    """Return the ratio of bytes on the wire to bytes of updates, or None."""
    return None if run.numbers is None else run.numbers.wire_ratio


def cpu(run: Measured) -> float | None:
    """Return the CPU seconds of all parties per round, or None."""
    if run.numbers is None:
        return None
    used = _present(run.numbers.cpu_seconds)
    return divided(sum(used), len(run.numbers.rounds)) if used else None


def memory(run: Measured) -> float | None:
    """Return the largest peak memory of any party in bytes, or None."""
    used = [] if run.numbers is None else _present(run.numbers.peak_rss_bytes)
    return float(max(used)) if used else None


def _present(used: ByKind[float] | ByKind[int]) -> list[float]:
    return [value for value in (used.server, used.clients, used.others) if value is not None]
