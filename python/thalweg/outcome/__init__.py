"""Rounds and iterations in the form that users and records get: JSON objects with known keys.

``outcome.core`` has outcomes in the form that the package itself works with, and ``outcome.tables`` the same fields in
this form. docs/reference/outcome.md, record.md and json.md explain the keys. Sizes are in bytes, times in seconds, and
accuracies from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from typing_extensions import NotRequired

from thalweg.outcome.core import AppMetrics
from thalweg.outcome.tables import (
    Absence,
    ClientUsage,
    Evaluation,
    Fold,
    IterationReport,
    Loss,
    NeighbourExchange,
    NodePart,
    NodeShare,
    Outcome,
    Participant,
    ReplyFold,
    Timeline,
    Transfer,
    TreeFold,
    WorkSpan,
)

# The names of this package that outcome.tables has.
__all__ = [
    "Absence",
    "ClientUsage",
    "Evaluation",
    "Fold",
    "IterationReport",
    "Loss",
    "NeighbourExchange",
    "NodePart",
    "NodeShare",
    "Outcome",
    "Participant",
    "ReplyFold",
    "Timeline",
    "Transfer",
    "TreeFold",
    "WorkSpan",
]


class RecordedTransfer(Transfer):
    """A transfer in the journal, with its ends and its sender's congestion control. Older records lack some keys."""

    source: str | None
    target: str | None
    congestion_control: str | None


class NodeEvaluation(TypedDict):
    """An evaluation of a node's model, and when it ended, on the run's clock."""

    accuracy: float | None
    loss: float | None
    seconds: float
    at: float


class NodeEntry(TypedDict, total=False):
    """A node's part in an iteration. It has the columns of the table ``iterations`` too."""

    begin: float
    ready: float
    mixed: float
    seconds: float
    train_seconds: float
    exchange_seconds: float
    heard: int
    whole: int
    connected: int
    neighbours: int
    skipped: int
    samples: int
    metrics: AppMetrics
    chunks_used: int
    chunks_expected: int
    bytes_sent: int
    bytes_received: int
    evaluation: NodeEvaluation | None
    exchanges: list[NeighbourExchange]


class Entry(TypedDict):
    """The journal's entry of a round, or, with ``nodes``, of an iteration on a graph, which has no ``clients``."""

    round: int
    accuracy: float | None
    loss: float | None
    client_accuracy: NotRequired[float | None]
    client_loss: NotRequired[float | None]
    seconds: float
    communication_seconds: float
    compute_seconds: float | None
    fedcomm_seconds: float | None
    fedcomm_communication_seconds: float | None
    evaluation_seconds: float | None
    bytes_down: int
    bytes_up: int
    participants: int
    expected: int
    complete: bool
    fold: Fold | TreeFold | ReplyFold | None
    clients: list[Participant]
    transfers: list[RecordedTransfer]
    drift: NotRequired[float | None]
    disagreement: NotRequired[float | None]
    nodes: NotRequired[Mapping[str, NodeEntry]]


def completion_seconds(entry: Entry) -> float | None:
    """Return the seconds from a round's first whole update to the new model; None if they are not known."""
    fold = entry.get("fold")
    return None if fold is None or "folded" in fold else fold.get("completion_seconds")


class SummaryRound(TypedDict):
    """A round in a summary."""

    round: int
    accuracy: float | None
    loss: float | None
    client_accuracy: float | None
    client_loss: float | None
    seconds: float
    communication_seconds: float
    fedcomm_communication_seconds: float | None
    bytes_down: int
    bytes_up: int
    participants: int
    expected: int
    complete: bool


class PeakMemory(TypedDict):
    """Peak memory in bytes. ``clients`` is None if they share the server's process."""

    server: int | None
    clients: Sequence[int | None] | None


class Summary(TypedDict):
    """The document that ``thalweg run --json`` prints of a job with a server. ``tree``: the work of its workers."""

    transport: str
    transport_reason: str | None
    algorithm: str
    model: str
    clients: int
    parameters: int
    update_bytes: int
    rounds: list[SummaryRound]
    absent: list[Absence]
    peak_rss_bytes: PeakMemory
    emulation: str
    emulation_reason: str | None
    tree: NotRequired[Mapping[str, object]]
    record: str


class GraphSummary(TypedDict):
    """The document that ``thalweg run --json`` prints of a job on a graph."""

    graph: str | None
    nodes: int
    iterations: int
    iteration_seconds: Mapping[str, float] | None
    exchange_seconds: Mapping[str, float] | None
    chunks_used: float | None
    bytes_sent: int
    accuracy: Mapping[str, float] | None
    drift: float | None
    disagreement: float | None
    peak_rss_bytes: int | None
    record: str


class ClientRound(TypedDict):
    """A round as one of its clients saw it.

    ``samples``: the update's weight. ``status``: accepted, late, rejected or done.
    """

    round: int
    samples: int | float
    status: str
