"""The outcome of a round and the report of an iteration, as the core sends them and the package works with them.

scripts/outcome_tables.py makes ``thalweg.outcome.tables`` of this file: the same fields in the form that users and
records get. Sizes are in bytes. Times are in seconds on the server's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

from thalweg import wire

# The app's own metrics.
AppMetrics: TypeAlias = Mapping[str, bool | int | float | str]

# States of participants whose updates the mean contains.
COUNTED: Final = ("whole", "partial")


@dataclass(frozen=True)
class Loss:
    """How many bytes of a tensor did not arrive, and which share of it that is."""

    tensor: str
    missing: int
    share: float


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """One transfer of a model or an update. The columns of ``transfers`` in the record explain the fields."""

    round: int
    client: str
    direction: str
    bytes: int
    missing: int
    losses: tuple[Loss, ...]
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


@dataclass(frozen=True)
class ClientUsage:
    """What a client's process used for an update. A value that it did not report is left out of JSON."""

    train_seconds: int | float | None = None
    cpu_seconds: int | float | None = None
    peak_rss_bytes: int | None = None
    congestion_control: str | None = None

    def table(self) -> dict[str, object]:
        """Return the fields that are known, by name."""
        return wire.sparse(self)


@dataclass(frozen=True)
class Evaluation:
    """A client's evaluation of the model that it has trained. A figure that it did not report is left out of JSON."""

    accuracy: int | float | None = None
    loss: int | float | None = None

    def table(self) -> dict[str, object]:
        """Return the figures that are known, by name."""
        return wire.sparse(self)


@dataclass(frozen=True, kw_only=True)
class Participant:
    """A client in a round, and whether its update counts.

    ``metrics`` is any value that the client sent, until ``thalweg.apps.metrics.Intake`` has checked it. Then it is
    ``AppMetrics``, and ``usage`` and ``evaluation`` have the rest. Older records have the usage among the metrics.
    """

    client: str
    state: str
    samples: int | float | None
    metrics: Annotated[object, AppMetrics]
    coverage: int | float
    reason: str | None
    usage: ClientUsage | None = None
    evaluation: Evaluation | None = None

    @property
    def counts(self) -> bool:
        """Whether the mean contains its update, or a part of it."""
        return self.state in COUNTED

    def table(self) -> dict[str, object]:
        """Return the fields by name. Usage and evaluation are left out if nobody has checked what the client sent."""
        return wire.sparse(self)


@dataclass(frozen=True)
class WorkSpan:
    """One piece of a worker's work, with its begin and end. ``node``: in a tree of several nodes, where it was."""

    worker: int
    what: str
    start: int | float
    end: int | float
    updates: int
    node: str | None = None

    def table(self) -> dict[str, object]:
        """Return the fields by name, without the node if there is only one."""
        return wire.sparse(self)


@dataclass(frozen=True)
class Timeline:
    """The work of workers in a round. ``left_out``: pieces of work beyond the maximum number that is kept."""

    did: tuple[WorkSpan, ...]
    left_out: int


@dataclass(frozen=True)
class Fold:
    """How a server added up the updates of a round."""

    uncovered_bytes: int | None
    completion_seconds: int | float | None
    finish_seconds: int | float
    timeline: Timeline | None = None

    def table(self) -> dict[str, object]:
        """Return the fields by name, without the timeline if no workers added up the updates."""
        return wire.sparse(self)


@dataclass(frozen=True)
class NodePart:
    """A node of a tree in a round: its clients, and how many updates its sums contain; else the reason."""

    node: str
    clients: int
    counted: int
    reason: str | None


@dataclass(frozen=True)
class NodeShare:
    """The number of bytes of the model whose mean a node computed."""

    node: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class TreeFold:
    """How the nodes of a tree added up the updates of a round.

    ``top`` is the node that added up all sums, and ``shares`` are the parts of the nodes that did so together. Both are
    None if the root did.
    """

    uncovered_bytes: int | None
    completion_seconds: int | float | None
    nodes: tuple[NodePart, ...]
    between_bytes: int
    timeline: Timeline
    top: str | None = None
    shares: tuple[NodeShare, ...] | None = None

    def table(self) -> dict[str, object]:
        """Return the fields by name, with only the one that applies of ``top`` and ``shares``."""
        return wire.sparse(self)


@dataclass(frozen=True)
class ReplyFold:
    """Whether a Flower app's replies were added up as they arrived, and how many replies and errors there were."""

    folded: bool
    replies: int
    errors: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a round."""

    round: int
    expected: int
    complete: bool
    start: int | float | None
    seconds: int | float
    communication_seconds: int | float
    bytes_down: int
    bytes_up: int
    participants: tuple[Participant, ...]
    transfers: tuple[Transfer, ...]
    congestion_control: str | None
    fold: Fold | TreeFold | ReplyFold

    @property
    def counting(self) -> list[Participant]:
        """The participants whose updates the mean contains, whole or in part."""
        return [part for part in self.participants if part.counts]


@dataclass(frozen=True)
class Absence:
    """A client that missed a round or left for good.

    ``counted``: rounds whose mean includes this client. ``reason``: why it left, or why it missed the last round that
    it missed. ``left``: whether it has left for good.
    """

    client: str
    counted: int
    reason: str | None
    left: bool


@dataclass(frozen=True)
class NeighbourExchange:
    """What a node received of a neighbour's model. The columns of ``exchanges`` in the record explain the fields.

    ``peer`` is the neighbour.
    """

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


@dataclass(frozen=True)
class IterationReport:
    """The core's report of an iteration of one node (docs/reference/outcome.md).

    Times are in seconds of the node's clock. ``exchanges`` has one for each neighbour.
    """

    round: int
    next: int
    skipped: int
    wait: str
    timed_out: bool
    by_segments: bool
    limit_seconds: float | None
    heard: Sequence[str]
    whole: Sequence[str]
    connected: Sequence[str]
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
    exchanges: Sequence[NeighbourExchange]

    @property
    def incomplete(self) -> list[str]:
        """Names of the neighbours whose model did not arrive as a whole."""
        return [one.peer for one in self.exchanges if one.peer not in self.whole]

    def table(self) -> dict[str, object]:
        """Return its fields by name, with a table for each neighbour, as the record keeps it."""
        return {**vars(self), "exchanges": [vars(one) for one in self.exchanges]}
