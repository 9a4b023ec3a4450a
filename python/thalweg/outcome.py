"""Rounds and iterations in the form that users and records get: JSON objects with known keys.

``apps.core_outcome`` has the form that the package itself works with. docs/reference/outcome.md, record.md and json.md
explain the keys. Sizes are in bytes, times in seconds, and accuracies from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from typing_extensions import NotRequired

from thalweg.wire import Table


class Loss(TypedDict):
    """A tensor of which bytes did not arrive, and the fraction of it that they are."""

    tensor: str
    missing: int
    share: float


class Transfer(TypedDict, total=False):
    """A model on its way to a client (``down``), or its update on the way back (``up``).

    The record adds ``source`` and ``target``.
    """

    round: int
    client: str
    direction: str
    source: str | None
    target: str | None
    bytes: int
    missing: int
    repair: str | None
    wire_bytes: int
    send_start: float | None
    send_end: float | None
    receive_start: float | None
    receive_end: float | None
    retransmissions: int | None
    congestion_control: str | None
    duplicates: int
    corrupt: int
    copied: int | None
    records_lost: int | None
    resumed: int
    complete: bool
    losses: Sequence[Loss]


class Usage(TypedDict, total=False):
    """What a client's process used, as far as it reported that."""

    train_seconds: float
    cpu_seconds: float
    peak_rss_bytes: int
    congestion_control: str


class Quality(TypedDict, total=False):
    """What a client's evaluation of its own model gave."""

    accuracy: float
    loss: float


class Participant(TypedDict):
    """A client's part in a round. Older records have its usage among the metrics."""

    client: str
    state: str
    samples: int | None
    metrics: Mapping[str, bool | int | float | str]
    usage: NotRequired[Usage]
    evaluation: NotRequired[Quality]
    coverage: float
    reason: str | None


class NodeFold(TypedDict):
    """A node of a tree, and how many updates it counted."""

    node: str
    counted: int


class Fold(TypedDict, total=False):
    """What the aggregation did. Rounds of a Flower app have ``folded``, ``replies`` and ``errors`` instead."""

    uncovered_bytes: int
    completion_seconds: float | None
    finish_seconds: float
    between_bytes: int
    timeline: Table
    nodes: Sequence[NodeFold]
    top: str | None
    folded: bool
    replies: int
    errors: int


class Outcome(TypedDict):
    """The core's outcome of a round. A Flower app's round has no ``start``."""

    round: int
    expected: int
    complete: bool
    start: NotRequired[float | None]
    seconds: float
    communication_seconds: float
    bytes_down: int
    bytes_up: int
    participants: list[Participant]
    transfers: list[Transfer]
    congestion_control: NotRequired[str | None]
    fold: NotRequired[Fold | None]


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
    metrics: Table
    chunks_used: int
    chunks_expected: int
    bytes_sent: int
    bytes_received: int
    evaluation: NodeEvaluation | None
    exchanges: Sequence[Table]


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
    fold: Fold | None
    clients: list[Participant]
    transfers: list[Transfer]
    drift: NotRequired[float | None]
    disagreement: NotRequired[float | None]
    nodes: NotRequired[Mapping[str, NodeEntry]]


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
    absent: list[Table]
    peak_rss_bytes: PeakMemory
    emulation: str
    emulation_reason: str | None
    tree: NotRequired[Table]
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
    """A round as one of its clients saw it. ``status``: accepted, late, rejected or done."""

    round: int
    samples: int
    status: str
