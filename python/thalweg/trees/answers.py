"""Answers that a node of a tree gives its root, with the limits of each value.

If a node's answer breaks these limits, the root treats the node as lost, for that reason. ``thalweg.job.tree.messages``
names the kind of answer to each request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, ValidationError

from thalweg import _core, wire
from thalweg.bounded_json import JsonError
from thalweg.outcome import core as core_outcome
from thalweg.trees import counters

# Maximum size of a reason or a note, in bytes. The core has the same limit.
LONGEST_LINE: Final = 1300
# The core keeps at most 1000 notes until they are read, and adds one note that counts the dropped ones.
MOST_NOTES: Final = 1001
MOST_CLIENTS: Final = 1_000_000
# Maximum number of nodes of whose workers a middle node tells its parent: an answer has at most 1 MiB.
MOST_NODES: Final = 128
# Maximum of a count: a float represents every whole number up to this one.
LARGEST: Final = 2**53


def _plain(text: str) -> str:
    return _core.plain_text(text, LONGEST_LINE)


Name = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_plain)]
Line = Annotated[str, Field(max_length=4 * LONGEST_LINE), AfterValidator(_plain)]
Url = Annotated[str, Field(pattern=r"^[a-z]+://[!-~]{1,240}$")]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Clients = Annotated[int, Field(ge=1, le=MOST_CLIENTS)]
# A time or a duration in seconds. A time may be negative: before the beginning of another clock.
Seconds = Annotated[int | float, Field(ge=-1e12, le=1e12)]
Amount = Annotated[int | float, Field(ge=0, le=1e300)]
Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]*={0,2}$")]


@dataclass(frozen=True, kw_only=True)
class Form:
    """An answer: a table that has exactly these keys, each with a value of its type."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    def table(self) -> dict[str, object]:
        """Return its fields by name, as they go over the wire."""
        return wire.sparse(self)


@dataclass(frozen=True, kw_only=True)
class Nothing(Form):
    """An answer that only confirms that the request was received."""


@dataclass(frozen=True, kw_only=True)
class Unopened(Form):
    """The answer of a node that was started anew, until it is opened and all nodes below it are open."""

    unopened: bool = True


@dataclass(frozen=True, kw_only=True)
class Opened(Form):
    """Where a node listens for its clients."""

    address: Url
    reached: Url | None
    peers: Url | None
    expected: Clients


@dataclass(frozen=True, kw_only=True)
class Percentiles(counters.Percentiles, Form):
    """Percentiles of a time of a node's workers, in microseconds."""

    p50: Amount | None
    p99: Amount | None


@dataclass(frozen=True, kw_only=True)
class Started(counters.Started, Form):
    """How many workers were started from the template process, and how many as new programs."""

    template: Count
    program: Count


@dataclass(frozen=True, kw_only=True)
class Created(counters.Created, Form):
    """How many processes were started as leaves, and how many only to add up the leaves' sums."""

    leaf: Count
    middle: Count


@dataclass(frozen=True, kw_only=True)
class Reused(counters.Reused, Form):
    """How often a leaf took over the work of another role."""

    middle: Count


@dataclass(frozen=True, kw_only=True)
class LiveDecision(counters.LiveDecision, Form):
    """A plan of a node's workers that was made while the job ran."""

    number: Count
    at: Amount
    rate: Amount
    seconds: Amount
    queue: Amount
    estimate: Amount
    before: Count
    leaves: Count
    middle: bool
    reasons: Annotated[tuple[Line, ...], Field(max_length=16)]


@dataclass(frozen=True, kw_only=True)
class Decisions(counters.Decisions, Form):
    """How many plans a node made while the job ran, and the latest of them."""

    count: Count
    latest: Annotated[tuple[LiveDecision, ...], Field(max_length=64)]


@dataclass(frozen=True, kw_only=True)
class Routed(counters.Routed, Form):
    """The kernel's counts of the workers' notes that it routed, and that it passed to the node."""

    routed: Count
    passed: Count
    bytes: Count


@dataclass(frozen=True, kw_only=True)
class Now(counters.Now, Form):
    """What a node's workers are doing at this moment."""

    folds: Count
    ready: Count
    places: Count
    free: Count
    handover_bounds_us: Annotated[tuple[Amount, ...], Field(max_length=64)]
    handover_counts: Annotated[tuple[Count, ...], Field(max_length=65)]
    handover_sum_us: Amount


@dataclass(frozen=True, kw_only=True)
class Workers(counters.Workers, Form):
    """What the workers of a node have done."""

    workers: Count
    leaves: Count
    aggregators_created: Count
    created: Created
    reused: Reused
    retired: Count
    decisions: Decisions | None
    died: Count
    warm: Count
    commits: Count
    started: Started
    start_us: Percentiles
    resume_us: Percentiles
    handover_us: Percentiles
    fold_us: Percentiles
    cpu_seconds: Amount
    hops_cpu_seconds: Amount
    pool_bytes: Count
    sums_bytes: Count
    routes: Literal["kernel", "node"]
    routes_reason: Line
    notes: Routed | None
    now: Now


@dataclass(frozen=True, kw_only=True)
class State(Form):
    """The clients of a node, its notes, and what its workers have done."""

    clients: Annotated[tuple[Name, ...], Field(max_length=MOST_CLIENTS)]
    # For each client, as a list in JSON: its name, why it departed, and whether it left for good.
    departed: Annotated[tuple[tuple[Name, Line, bool], ...], Field(max_length=MOST_CLIENTS)]
    notes: Annotated[tuple[Line, ...], Field(max_length=MOST_NOTES)]
    tree: Workers | None
    cpu_seconds: Amount | None
    # Of a middle node: the same of the nodes below it that have workers, by name.
    below: Annotated[dict[Name, Workers], Field(max_length=MOST_NODES)] | None = None


@dataclass(frozen=True, kw_only=True)
class Loss(core_outcome.Loss, Form):
    """How many bytes of a tensor did not arrive."""

    tensor: Line
    missing: Count
    share: Annotated[int | float, Field(ge=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class Transfer(core_outcome.Transfer, Form):
    """One transfer of a model or an update."""

    round: Count
    client: Name
    direction: Literal["down", "up"]
    bytes: Count
    missing: Count
    losses: tuple[Loss, ...]
    repair: Line | None
    wire_bytes: Count
    send_start: Seconds | None
    send_end: Seconds | None
    receive_start: Seconds | None
    receive_end: Seconds | None
    retransmissions: Count | None
    duplicates: Count
    corrupt: Count
    copied: Count
    records_lost: Count | None
    resumed: Count
    complete: bool


@dataclass(frozen=True, kw_only=True)
class Participant(core_outcome.Participant, Form):
    """A client in a round, and whether its update counts."""

    client: Name
    state: Literal["whole", "partial", "lost", "rejected", "late"]
    samples: Amount
    # ``Intake`` checks these when the root records them.
    metrics: object
    coverage: Annotated[int | float, Field(ge=0, le=1)]
    reason: Line | None
    usage: None = None
    evaluation: None = None


@dataclass(frozen=True, kw_only=True)
class WorkSpan(core_outcome.WorkSpan, Form):
    """One piece of a worker's work, with its begin and end."""

    worker: Count
    what: Literal["start", "fold", "merge", "commit", "died", "mean", "sums"]
    start: Seconds
    end: Seconds
    updates: Count
    node: None = None


@dataclass(frozen=True, kw_only=True)
class Timeline(core_outcome.Timeline, Form):
    """The work of a node's workers in a round."""

    did: Annotated[tuple[WorkSpan, ...], Field(max_length=2048)]
    left_out: Count


@dataclass(frozen=True, kw_only=True)
class Fold(core_outcome.Fold, Form):
    """How the node added up the updates of a round."""

    uncovered_bytes: Count | None
    completion_seconds: Seconds | None
    finish_seconds: Seconds
    timeline: Timeline | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome(core_outcome.Outcome, Form):
    """The outcome of a node's round."""

    round: Count
    expected: Count
    complete: bool
    start: Seconds
    seconds: Seconds
    communication_seconds: Seconds
    bytes_down: Count
    bytes_up: Count
    participants: Annotated[tuple[Participant, ...], Field(max_length=MOST_CLIENTS)]
    transfers: tuple[Transfer, ...]
    congestion_control: Line | None
    fold: Fold
    failure: Line | None


@dataclass(frozen=True, kw_only=True)
class Round(State):
    """A node's part in a round. ``held``: it has sums of updates; ``sums``: they come with this answer.

    ``between`` are the transfers between this node and the nodes below it.
    """

    outcome: Outcome
    zero: Seconds
    first: Seconds | None
    held: bool
    sums: Base64 | None = None
    between: tuple[Transfer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Arrived(Form):
    """News of updates: for each, as a list in JSON, the client, and whether its update can be folded.

    If not, the update had arrived, but cannot be folded. The list is empty if the batch is over.
    """

    arrivals: Annotated[tuple[tuple[Name, bool], ...], Field(max_length=MOST_CLIENTS)]


@dataclass(frozen=True, kw_only=True)
class Proofs(Form):
    """Proofs that clients have shown a node, by their names."""

    proofs: dict[Name, Base64]


@dataclass(frozen=True, kw_only=True)
class Resent(Form):
    """How many segments a node sent again, with its clients and other nodes; null where not all are counted."""

    down: Count | None
    up: Count | None


@dataclass(frozen=True, kw_only=True)
class Refusable(Form):
    """A node carried out a request, or refused it for a reason."""

    refused: Line | None = None


@dataclass(frozen=True, kw_only=True)
class Taken(Refusable):
    """A top added another node's sums to its own, or refused them."""

    between: tuple[Transfer, ...]


@dataclass(frozen=True, kw_only=True)
class MeanFold(Form):
    """How many bytes of a top's mean no update covers."""

    uncovered_bytes: Count | None


@dataclass(frozen=True, kw_only=True)
class Mean(Form):
    """A node computed the mean, which is the answer's tensor."""

    fold: MeanFold
    done: Seconds


@dataclass(frozen=True, kw_only=True)
class Shared(Form):
    """A node added up all nodes' sums of one part of the model, but for the ``refused`` ones."""

    refused: dict[Name, Line]
    between: tuple[Transfer, ...]


@dataclass(frozen=True, kw_only=True)
class Delivered(Form):
    """Which nodes have this node's part of the mean."""

    has: tuple[Name, ...]
    between: tuple[Transfer, ...]


AnyAnswer = TypeVar("AnyAnswer", bound=Form)


def read(kind: type[AnyAnswer], request: str, text: bytes) -> AnyAnswer:
    """Return a node's answer to the request of this name. Raises JsonError, which names the first wrong field."""
    try:
        return wire.decode(kind, text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the answer"
        reason = _core.plain_text(f"{place}: {first['msg']}", 200)
        raise JsonError(f"an answer to {request!r} has another form ({reason})") from None
