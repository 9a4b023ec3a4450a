"""The numbers of a bench as values: of a run, of a cell, and of the whole. ``bench.json`` has them by the same names.

Sizes are in bytes, times in seconds; None if a number is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from thalweg.machine import Build, Hardware
from thalweg.report.values import Spread
from thalweg.ui.verdict import Verdict

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class ByKind(Generic[Number]):
    """A number of the server, of all clients together, and of all other parties (such as a broker) together."""

    server: Number | None = None
    clients: Number | None = None
    others: Number | None = None


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """A round of a run."""

    round: int
    seconds: float | None
    communication_seconds: float | None
    fedcomm_communication_seconds: float | None
    bound_seconds: float | None
    complete: bool | None
    accuracy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNumbers:
    """A run. ``wire_counted``: whether bytes were counted as IP or by the transport."""

    rounds: Sequence[RoundTimes]
    accuracy: float | None = None
    update_bytes: int | None = None
    wire_bytes: int | None = None
    wire_counted: str | None = None
    wire_ratio: float | None = None
    retransmissions: int | None = None
    cpu_seconds: ByKind[float] = ByKind()
    peak_rss_bytes: ByKind[int] = ByKind()
    transport: str | None = None
    congestion_control: str | None = None
    unasked_congestion_control: str | None = None
    emulation: str | None = None
    bound_source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run of a cell ended. ``status`` is complete or failed; ``numbers`` is None if it failed.

    ``record`` is the path of its record, from the bench's folder.
    """

    cell: int
    repetition: int
    settings: Mapping[str, str]
    status: str
    reason: str | None
    numbers: RunNumbers | None
    started: str
    seconds: float
    record: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellNumbers:
    """A cell: times over the rounds of all its runs, the rest over its runs.

    ``repetitions`` is the number of completed runs. Lists by run have the median of each run.
    """

    cell: int
    settings: Mapping[str, str]
    status: str
    reasons: Sequence[str]
    repetitions: int
    failed: int
    rounds: int
    incomplete_rounds: int
    round_seconds: Spread | None
    round_seconds_by_run: Sequence[float | None]
    bound_seconds: float | None
    communication_seconds: Spread | None
    communication_seconds_by_run: Sequence[float | None]
    fedcomm_communication_seconds: Spread | None
    fedcomm_communication_seconds_by_run: Sequence[float | None]
    share_of_bound: float | None
    retransmissions: float | None
    update_bytes: float | None
    wire_bytes: float | None
    wire_ratio: float | None
    accuracy: float | None
    cpu_seconds: ByKind[float]
    peak_rss_bytes: ByKind[float]
    wire_counted: str | None
    congestion_control: str | None
    unasked_congestion_control: str | None
    emulation: str | None
    bound_source: str | None
    seconds_a_run: float | None = None
    records: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """The verdict on the ways under one ``condition``, which describes all settings that are not part of the way."""

    condition: str
    verdict: Verdict
    notes: Sequence[str]

    def table(self) -> dict[str, object]:
        """Return the answer as a table for JSON."""
        return {"place": self.condition, **self.verdict.table(), "notes": self.notes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """A bench so far: the content of ``bench.json``."""

    folder: str
    status: str
    left: int
    failed: int
    repetitions: int
    seed: int
    accounting: str
    axes: Mapping[str, Sequence[str]]
    answers: Sequence[Answer]
    cells: Sequence[CellNumbers]
    runs: Sequence[Outcome]
    thalweg: Build
    kernel: str
    machine: Hardware
    versions: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class CellPreview:
    """A cell that would be run: how many runs are missing, and the seconds of one."""

    cell: int
    settings: Mapping[str, str]
    runs: int
    estimate_seconds: float


@dataclass(frozen=True, slots=True)
class SkippedCell:
    """A cell whose plan is impossible, and why."""

    cell: int
    settings: Mapping[str, str]
    reason: str


@dataclass(frozen=True, slots=True)
class Preview:
    """The runs that would be run, and how long they may take."""

    repetitions: int
    runs: int
    estimate_seconds: float
    estimate_is_measured: bool
    cells: Sequence[CellPreview]
    skipped: Sequence[SkippedCell]
