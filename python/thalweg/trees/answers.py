"""What nodes of a tree may answer their root and each other: each message's form, with bounds.

A node that answers in another form is lost with the reason. ``FORMS`` has the form of each thing that is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError

from thalweg import _core
from thalweg.bounded_json import JsonError

# Bytes of a reason or a note, as the core bounds its own.
LONGEST_LINE: Final = 1300
# The core's notes that wait at most, and one that says how many were left out.
MOST_NOTES: Final = 1001
MOST_CLIENTS: Final = 1_000_000
# Of weights and counts: what a float has exactly.
LARGEST: Final = 2**53


def _plain(text: str) -> str:
    return _core.plain_text(text, LONGEST_LINE)


Name = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_plain)]
Line = Annotated[str, Field(max_length=4 * LONGEST_LINE), AfterValidator(_plain)]
Url = Annotated[str, Field(pattern=r"^[a-z]+://[!-~]{1,240}$")]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Clients = Annotated[int, Field(ge=1, le=MOST_CLIENTS)]
# A time or a duration, which may be before another clock's beginning.
Seconds = Annotated[int | float, Field(ge=-1e12, le=1e12)]
Amount = Annotated[int | float, Field(ge=0, le=1e300)]
Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]*={0,2}$")]


class Form(BaseModel):
    """Has these keys and no others, each of its type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class Nothing(Form):
    """An answer that says only that it was heard."""


class Opened(Form):
    """Of a node that listens for its clients."""

    address: Url
    reached: Url | None
    peers: Url | None
    expected: Clients


class Percentiles(Form):
    """Times of workers."""

    p50: Amount | None
    p99: Amount | None


class Started(Form):
    """How workers were started."""

    template: Count
    program: Count


class Routed(Form):
    """What the kernel counted of notes."""

    routed: Count
    passed: Count
    bytes: Count


class Now(Form):
    """What workers do at this moment."""

    folds: Count
    ready: Count
    places: Count
    free: Count
    handover_bounds_us: Annotated[list[Amount], Field(max_length=64)]
    handover_counts: Annotated[list[Count], Field(max_length=65)]
    handover_sum_us: Amount


class Workers(Form):
    """What the workers of a node have done."""

    workers: Count
    aggregators_created: Count
    died: Count
    reused: Count
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


class State(Form):
    """Who is at a node."""

    clients: Annotated[list[Name], Field(max_length=MOST_CLIENTS)]
    # A list in JSON: name, why, and whether it left for good.
    departed: Annotated[list[Annotated[tuple[Name, Line, bool], Strict(False)]], Field(max_length=MOST_CLIENTS)]
    notes: Annotated[list[Line], Field(max_length=MOST_NOTES)]
    tree: Workers | None
    cpu_seconds: Amount | None


class Loss(Form):
    """What did not come of a tensor."""

    tensor: Line
    missing: Count
    share: Annotated[int | float, Field(ge=0, le=1)]


class Transfer(Form):
    """A parcel's way."""

    round: Count
    client: Name
    direction: Literal["down", "up"]
    bytes: Count
    missing: Count
    losses: list[Loss]
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


class Participant(Form):
    """What became of a client in a round."""

    client: Name
    state: Literal["whole", "partial", "lost", "rejected", "late"]
    samples: Amount
    #: The app's own, judged where they are kept.
    metrics: Any
    coverage: Annotated[int | float, Field(ge=0, le=1)]
    reason: Line | None


class Stretch(Form):
    """What a worker did for a while."""

    worker: Count
    what: Literal["start", "fold", "commit", "died", "mean", "sums"]
    start: Seconds
    end: Seconds
    updates: Count


class Timeline(Form):
    """What workers did in a round."""

    did: Annotated[list[Stretch], Field(max_length=2048)]
    left_out: Count


class Fold(Form):
    """What the fold of a node's round says."""

    uncovered_bytes: Count | None
    completion_seconds: Seconds | None
    finish_seconds: Seconds | None
    timeline: Timeline | None = None


class Outcome(Form):
    """The outcome of a node's round."""

    round: Count
    expected: Count
    complete: bool
    start: Seconds
    seconds: Seconds
    communication_seconds: Seconds
    bytes_down: Count
    bytes_up: Count
    participants: Annotated[list[Participant], Field(max_length=MOST_CLIENTS)]
    transfers: list[Transfer]
    congestion_control: Line | None
    fold: Fold
    failure: Line | None


class Round(State):
    """A node's part in a round; with ``sums`` it sends them, with ``held`` it has some."""

    outcome: Outcome
    zero: Seconds
    first: Seconds | None
    held: bool
    sums: Base64 | None = None


class Refusable(Form):
    """Done, or refused for a reason."""

    refused: Line | None = None


class Taken(Refusable):
    """Sums of another node were taken, or refused."""

    between: list[Transfer]


class MeanFold(Form):
    """What a top says of its mean."""

    uncovered_bytes: Count | None


class Mean(Form):
    """A mean was taken; it comes as the answer's tensor."""

    fold: MeanFold
    done: Seconds


class Shared(Form):
    """Sums of a part were taken from all nodes, but from those that were refused."""

    refused: dict[Name, Line]
    between: list[Transfer]


class Told(Form):
    """Who has a part of the mean."""

    has: list[Name]
    between: list[Transfer]


class Sums(Form):
    """A node's sums, whose cells come as the answer's tensor."""

    sums: Base64


FORMS: Final[Mapping[str, type[Form]]] = {
    "open": Opened,
    "wait": State,
    "round": Round,
    "forget": Nothing,
    "homes": Nothing,
    "gone": Nothing,
    "lead": Refusable,
    "give": Nothing,
    "take": Taken,
    "finish": Mean,
    "share": Shared,
    "settle": Mean,
    "told": Told,
    "sums": Sums,
    "mean": Nothing,
}


def checked(asked: str, head: Any) -> dict[str, Any]:
    """Return the answer to what was asked, which has its form. Raises JsonError, which says where it has not."""
    try:
        return FORMS[asked].model_validate(head).model_dump(exclude_unset=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the answer"
        said = _core.plain_text(f"{place}: {first['msg']}", 200)
        raise JsonError(f"an answer to {asked!r} has another form ({said})") from None
