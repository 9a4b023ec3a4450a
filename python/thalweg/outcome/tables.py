"""Outcomes in the form that users and records get: JSON objects with known keys.

scripts/outcome_tables.py makes this file of ``thalweg.outcome.core``. Change that, and run
``.venv/bin/python scripts/outcome_tables.py --write``.
"""

from __future__ import annotations

from typing import TypedDict, final

from typing_extensions import NotRequired

from thalweg.outcome.core import AppMetrics


class Loss(TypedDict):
    """How many bytes of a tensor did not arrive, and which share of it that is."""

    tensor: str
    missing: int
    share: float


class Transfer(TypedDict):
    """One transfer of a model or an update. The columns of ``transfers`` in the record explain the fields."""

    round: int
    client: str
    direction: str
    bytes: int
    missing: int
    losses: list[Loss]
    repair: str | None
    wire_bytes: int
    send_start: int | float | None
    send_end: int | float | None
    receive_start: int | float | None
    receive_end: int | float | None
    retransmissions: int | None
    duplicates: int
    corrupt: int
    copied: int
    records_lost: int | None
    resumed: int
    complete: bool


class ClientUsage(TypedDict):
    """What a client's process used for an update. A value that it did not report is left out of JSON."""

    train_seconds: NotRequired[int | float]
    cpu_seconds: NotRequired[int | float]
    peak_rss_bytes: NotRequired[int]
    congestion_control: NotRequired[str]


class Evaluation(TypedDict):
    """A client's evaluation of the model that it has trained. A figure that it did not report is left out of JSON."""

    accuracy: NotRequired[int | float]
    loss: NotRequired[int | float]


class Participant(TypedDict):
    """A client in a round, and whether its update counts."""

    client: str
    state: str
    samples: int | float | None
    metrics: AppMetrics
    coverage: int | float
    reason: str | None
    usage: NotRequired[ClientUsage]
    evaluation: NotRequired[Evaluation]


class WorkSpan(TypedDict):
    """One piece of a worker's work, with its begin and end. ``node``: in a tree of several nodes, where it was."""

    worker: int
    what: str
    start: int | float
    end: int | float
    updates: int
    node: NotRequired[str]


class Timeline(TypedDict):
    """The work of workers in a round. ``left_out``: pieces of work beyond the maximum number that is kept."""

    did: list[WorkSpan]
    left_out: int


@final
class Fold(TypedDict):
    """How a server added up the updates of a round."""

    uncovered_bytes: int | None
    completion_seconds: int | float | None
    finish_seconds: int | float
    timeline: NotRequired[Timeline]


class NodePart(TypedDict):
    """A node of a tree in a round: its clients, and how many updates its sums contain; else the reason."""

    node: str
    clients: int
    counted: int
    reason: str | None


class NodeShare(TypedDict):
    """The number of bytes of the model whose mean a node computed."""

    node: str
    bytes: int


@final
class TreeFold(TypedDict):
    """How the nodes of a tree added up the updates of a round."""

    uncovered_bytes: int | None
    completion_seconds: int | float | None
    nodes: list[NodePart]
    between_bytes: int
    timeline: Timeline
    top: NotRequired[str]
    shares: NotRequired[list[NodeShare]]


@final
class ReplyFold(TypedDict):
    """Whether a Flower app's replies were added up as they arrived, and how many replies and errors there were."""

    folded: bool
    replies: int
    errors: int


class Outcome(TypedDict):
    """The outcome of a round."""

    round: int
    expected: int
    complete: bool
    start: int | float | None
    seconds: int | float
    communication_seconds: int | float
    bytes_down: int
    bytes_up: int
    participants: list[Participant]
    transfers: list[Transfer]
    congestion_control: str | None
    fold: Fold | TreeFold | ReplyFold


class Absence(TypedDict):
    """A client that missed a round or left for good."""

    client: str
    counted: int
    reason: str | None
    left: bool


class NeighbourExchange(TypedDict):
    """What a node received of a neighbour's model. The columns of ``exchanges`` in the record explain the fields."""

    peer: str
    weight: float
    state: str
    bytes: int
    expected: int
    chunks: int
    duplicates: int
    corrupt: int
    late_chunks: int
    first_seconds: float | None
    last_seconds: float | None
    newest: int


class IterationReport(TypedDict):
    """The core's report of an iteration of one node (docs/reference/outcome.md)."""

    round: int
    next: int
    skipped: int
    wait: str
    timed_out: bool
    by_segments: bool
    limit_seconds: float | None
    heard: list[str]
    whole: list[str]
    connected: list[str]
    bytes_used: int
    bytes_expected: int
    chunks_used: int
    chunks_expected: int
    own_weight: float
    fresh: bool
    begin_at: float
    ready_at: float
    mixed_at: float
    wait_seconds: float
    mix_seconds: float
    bytes_sent: int
    bytes_received: int
    late_chunks: int
    early_dropped: int
    bad_chunks: int
    exchanges: list[NeighbourExchange]
