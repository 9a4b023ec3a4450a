"""The answer of ``advise`` as values. ``--json`` prints their fields by the same names (docs/reference/json.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thalweg.advise.judge import Answer
from thalweg.report.values import Spread
from thalweg.ui.verdict import Verdict


@dataclass(frozen=True, slots=True)
class RequestedCondition:
    """The question. ``condition`` is in words; ``clients`` is None if any number is as good."""

    network: str
    model: str
    condition: str
    update_bytes: int
    clients: int | None


@dataclass(frozen=True, slots=True)
class Failed:
    """A transport of which runs failed under a condition: ``failed`` of ``runs``."""

    condition: str
    transport: str
    failed: int
    runs: int
    reasons: Sequence[str]


@dataclass(frozen=True, slots=True)
class Way:
    """A transport in the nearest condition. Spreads are over its runs; ``runs`` came to their end."""

    transport: str
    runs: int
    failed: int
    reasons: Sequence[str]
    incomplete_rounds: int
    broker: bool | None
    communication_seconds: Spread | None
    wire_ratio: Spread | None
    cpu_seconds: Spread | None
    peak_rss_bytes: Spread | None
    retransmissions: Spread | None


@dataclass(frozen=True, slots=True)
class Nearest:
    """The measured condition that is nearest to the question; ``distance`` is in doublings."""

    condition: str
    update_bytes: int
    clients: int
    emulation: str
    distance: float
    differences: Sequence[str]
    transports: Sequence[Way]


@dataclass(frozen=True, slots=True)
class Answers:
    """The best transport for each question; None if no run has that number."""

    fastest: Answer | None
    least_bytes: Answer | None
    least_cpu: Answer | None
    least_memory: Answer | None


@dataclass(frozen=True, slots=True)
class Unconstrained:
    """The fastest transport on loopback."""

    condition: str
    update_bytes: int
    clients: int
    answer: Answer

    def table(self) -> dict[str, object]:
        """Return the condition and the answer as one table, for JSON."""
        own = {"condition": self.condition, "update_bytes": self.update_bytes, "clients": self.clients}
        return {**own, **self.answer.table()}


@dataclass(frozen=True, slots=True)
class MeasuredCondition:
    """A condition that was measured, at ``distance`` doublings from the question, and the fastest transport there."""

    condition: str
    update_bytes: int
    clients: int
    emulation: str
    distance: float
    runs: int
    fastest: Answer | None


@dataclass(frozen=True, slots=True)
class Runs:
    """A number of further runs, and how long they take; None if that is not known."""

    runs: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of more runs: of the measured condition (``again``), or of the condition in question (``as_asked``)."""

    again: Runs
    as_asked: Runs


@dataclass(frozen=True, slots=True)
class Advice:
    """The answer to a question. Without a record that can answer, there is only the ``plan`` of a bench, in TOML.

    ``records`` counts runs, ``left_out`` has the reason by path.
    """

    asked: RequestedCondition
    notes: Sequence[str]
    records: int
    left_out: Mapping[str, str]
    verdict: Verdict | None
    failed: Sequence[Failed]
    nearest: Nearest | None
    answers: Answers | None
    unconstrained: Unconstrained | None
    conditions: Sequence[MeasuredCondition]
    cost: Cost | None
    plan: str

    def table(self) -> dict[str, object]:
        """Return the advice as a table for JSON."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "answers": self.answers or {}}
