"""The rows of a record's tables, and the only definition of their columns: name, type and meaning.

Times are in seconds. A value that is not known is None, which is null in a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from thalweg.machine import Usage
from thalweg.record.columns import Column


def column(kind: str, meaning: str) -> Any:
    """Return a field of a row. ``kind`` is its Arrow type."""
    return field(default=None, metadata={"kind": kind, "meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A row of ``rounds``: a round."""

    round: int = column("uint32", "number of the round, from 1")
    accuracy: float | None = column(
        "float64", "accuracy of the global model on the test set, 0 to 1 (FedComm section III.C step 7)"
    )
    loss: float | None = column("float64", "mean cross-entropy of the global model on the test set")
    client_accuracy: float | None = column(
        "float64",
        "mean over clients of the accuracy of the model that each trained, on its test data; null if clients do not "
        "evaluate (job.evaluate)",
    )
    client_loss: float | None = column(
        "float64", "mean over clients of the loss of the model that each trained; null as client_accuracy"
    )
    seconds: float | None = column("float64", "from the begin of the round to its mean, without the evaluation")
    communication_seconds: float | None = column("float64", "time in which at least one transfer was under way")
    compute_seconds: float | None = column("float64", "mean time that a client trained")
    fedcomm_seconds: float | None = column(
        "float64",
        "from when the model had been sent to all to the mean: what FedComm's code takes for a round's time",
    )
    fedcomm_communication_seconds: float | None = column(
        "float64", "fedcomm_seconds minus compute_seconds: what FedComm's code reports as communication"
    )
    evaluation_seconds: float | None = column("float64", "that the evaluation took")
    bytes_down: int | None = column("uint64", "bytes on all links towards clients")
    bytes_up: int | None = column("uint64", "bytes on all links from clients")
    participants: int | None = column("uint32", "clients whose update counts, whole or in part")
    expected: int | None = column("uint32", "updates that the round wants: job.goal, else its clients")
    complete: bool | None = column("bool", "whether all expected updates count whole")
    fold: str | None = column("string", "JSON object of what the aggregation did")
    drift: float | None = column(
        "float64",
        "on a graph, by how much mixing moved the mean of all models, as a fraction of that mean's norm; from sketches",
    )
    disagreement: float | None = column(
        "float64",
        "on a graph, root mean square distance of the models from their mean after mixing, as a fraction of its norm",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A row of ``transfers``: a round, client and direction."""

    round: int = column("uint32", "number of the round")
    client: str = column("string", "the client at one end")
    direction: str = column("string", "down: from the server, up: to the server")
    source: str | None = column("string", "the party that sends: server, or name of the client")
    target: str | None = column("string", "the party that receives: server, or name of the client")
    bytes: int | None = column("uint64", "bytes of the model or update that arrived")
    missing: int | None = column("uint64", "bytes of it that did not arrive and were not resent")
    repair: str | None = column(
        "string", "what stood in for them, as in [repair] of the plan; null if nothing was missing"
    )
    wire_bytes: int | None = column(
        "uint64", "bytes on the link in that direction meanwhile, headers and retransmissions included"
    )
    send_start: float | None = column("float64", "first byte given to the transport, on the server's clock of the run")
    send_end: float | None = column("float64", "last byte given to the transport")
    receive_start: float | None = column("float64", "first byte of the update received")
    receive_end: float | None = column("float64", "last byte of the update received")
    retransmissions: int | None = column(
        "uint64",
        "segments (of ltp: chunks) that the sender sent again, counted when the receiver has confirmed it; a count "
        "that comes after the round's end is in the sender's next transfer; null where nobody counts them",
    )
    congestion_control: str | None = column("string", "of the sender's connection, as its kernel names it")
    duplicates: int | None = column("uint64", "chunks that came more than once")
    corrupt: int | None = column("uint64", "chunks that came damaged")
    copied: int | None = column("uint64", "bytes of payload copied in user space at the server")
    records_lost: int | None = column(
        "uint64", "records that the server could not open, lost or forged; null if not sealed"
    )
    resumed: int | None = column(
        "uint32", "how many times the link broke and the transfer continued with the missing bytes"
    )
    complete: bool | None = column("bool", "whether all of it arrived")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A row of ``losses``: a round, client, direction and tensor of which bytes were missing."""

    round: int = column("uint32", "number of the round")
    client: str = column("string", "the client at one end")
    direction: str = column("string", "as in transfers")
    tensor: str = column("string", "a tensor of which bytes did not arrive and were not resent")
    missing: int | None = column("uint64", "bytes of the tensor that did not arrive")
    share: float | None = column("float64", "fraction of the tensor that did not arrive, 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """A row of ``participants``: a round and client."""

    round: int = column("uint32", "number of the round")
    client: str = column("string", "name of the client")
    state: str | None = column("string", "whole, partial, lost, rejected or late")
    samples: int | None = column("uint64", "weight of its update")
    coverage: float | None = column("float64", "fraction of its update that is in the mean, 0 to 1")
    reason: str | None = column("string", "why its update is not whole")
    train_seconds: float | None = column("float64", "time that the client trained")
    accuracy: float | None = column(
        "float64", "accuracy of the model that it trained, on its test data; null if clients do not evaluate"
    )
    loss: float | None = column("float64", "loss of the same model on the same data; null if clients do not evaluate")
    metrics: str | None = column(
        "string", "JSON object of what its app reported; NaN, Infinity and -Infinity are strings"
    )
    usage: str | None = column(
        "string", "JSON object of what its process used: train_seconds, cpu_seconds, peak_rss_bytes, ..."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """A row of ``iterations``: an iteration and node."""

    round: int = column("uint32", "number of the iteration, from 1")
    node: str = column("string", "name of the node")
    begin: float | None = column(
        "float64", "when it began to train, on the run's clock; for a node on another machine, on its own clock"
    )
    ready: float | None = column("float64", "when it had trained and began to send")
    mixed: float | None = column("float64", "when its model was the mean of its own and its neighbours'")
    seconds: float | None = column("float64", "from begin to mixed")
    train_seconds: float | None = column("float64", "from begin to ready")
    exchange_seconds: float | None = column("float64", "from ready to mixed")
    wait_seconds: float | None = column("float64", "the part of exchange_seconds in which it waited for its neighbours")
    mix_seconds: float | None = column("float64", "the part of exchange_seconds in which it computed the mean")
    skipped: int | None = column(
        "uint32", "iterations that it skipped before this one, because most of its neighbours were ahead"
    )
    timed_out: bool | None = column("bool", "whether a deadline ended its waiting")
    by_segments: bool | None = column("bool", "whether the nodes averaged their models by segments")
    limit_seconds: float | None = column("float64", "how long it would have waited at most; null without a deadline")
    neighbours: int | None = column("uint32", "number of neighbours whose models it expected")
    heard: int | None = column("uint32", "neighbours of whose model at least a part arrived")
    whole: int | None = column("uint32", "neighbours whose whole model arrived")
    connected: int | None = column("uint32", "neighbours that it was connected to")
    chunks_used: int | None = column("uint64", "chunks of neighbours that are in its mean")
    chunks_expected: int | None = column("uint64", "chunks that its neighbours' models have")
    bytes_used: int | None = column("uint64", "bytes of these models that are in its mean")
    bytes_expected: int | None = column("uint64", "bytes that these models have")
    own_weight: float | None = column("float64", "mean weight that its own model had, 0 to 1")
    fresh: bool | None = column(
        "bool", "whether the node had come back, so that its model became the mean of its neighbours' models alone"
    )
    bytes_sent: int | None = column(
        "uint64", "bytes sent on all its links since the iteration before, headers included"
    )
    bytes_received: int | None = column(
        "uint64", "bytes received on all its links since the iteration before, with headers"
    )
    late_chunks: int | None = column("uint64", "chunks that came for an iteration that was over")
    early_dropped: int | None = column("uint64", "chunks that came for an iteration further ahead than is kept")
    bad_chunks: int | None = column("uint64", "chunks that were not finite, or of another layout or job")
    samples: int | None = column("uint64", "samples of its own that it trains on")
    metrics: str | None = column(
        "string", "JSON object of what its app reported; NaN, Infinity and -Infinity are strings"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A row of ``exchanges``: an iteration, node and neighbour."""

    round: int = column("uint32", "number of the iteration")
    node: str = column("string", "the node that received")
    neighbour: str = column("string", "the node that sent")
    weight: float | None = column("float64", "the weight of a chunk that came")
    state: str | None = column("string", "whole, part, nothing, or away: not connected")
    bytes: int | None = column("uint64", "of the neighbour's model that came in time")
    expected: int | None = column("uint64", "bytes of that model")
    chunks: int | None = column("uint64", "chunks that came in time")
    duplicates: int | None = column("uint64", "chunks that came more than once")
    corrupt: int | None = column("uint64", "chunks that came damaged")
    late_chunks: int | None = column("uint64", "chunks that came for an iteration that was over")
    first_seconds: float | None = column(
        "float64", "when the first chunk came, after the node was ready; negative before"
    )
    last_seconds: float | None = column(
        "float64", "when the last chunk came, after the node was ready; negative before"
    )
    newest: int | None = column("uint32", "latest iteration of which a part of this neighbour's model has arrived")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A row of ``evaluations``: an evaluation of a node's model."""

    round: int = column("uint32", "number of the iteration after which the model was evaluated")
    node: str = column("string", "name of the node")
    at: float | None = column("float64", "when, on the run's clock")
    accuracy: float | None = column("float64", "accuracy of its model on the test set, 0 to 1")
    loss: float | None = column("float64", "mean cross-entropy of its model on the test set")
    seconds: float | None = column("float64", "that the evaluation took")


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """A row of ``parties``: a party."""

    party: str = column("string", "server, or name of the client")
    cpu_seconds: float | None = column(
        "float64", "that its process used, in user space and in the kernel; null in virtual time"
    )
    peak_rss_bytes: int | None = column("uint64", "peak resident memory of its process")
    retransmitted_segments: int | None = column("uint64", "TCP segments its emulated host sent again")
    receive_buffer_drops: int | None = column(
        "uint64", "packets its emulated host dropped for want of a receive buffer"
    )
    limiter_drops: int | None = column("uint64", "packets that the limiter on its emulated host's device dropped")
    congestion_control: str | None = column("string", "of its TCP connections")
    cpu_quota: float | None = column("float64", "cores it could use; null without a limit")
    stress: str | None = column("string", "JSON object of the load put on it and what that achieved")


def party_row(party: str, used: Usage) -> Party:
    """Return the row of a party of which only its process's usage is known."""
    return Party(party=party, cpu_seconds=used.cpu_seconds, peak_rss_bytes=used.peak_rss_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A row of ``links``: a direction of an emulated link."""

    link: str = column("string", "name of the link")
    direction: str = column("string", "ab: from a to b, which is client to server on a client's link; ba: back")
    source: str | None = column("string", "host or switch that sends")
    target: str | None = column("string", "host or switch that receives")
    nominal: str | None = column("string", "JSON object of the configured shape of the direction when the run began")
    packets_in: int | None = column("uint64", "packets of at most the MTU that were sent to it")
    bytes_in: int | None = column("uint64", "bytes of IP in them")
    packets_out: int | None = column("uint64", "packets that it delivered")
    bytes_out: int | None = column("uint64", "bytes of IP in them")
    lost: int | None = column("uint64", "packets that the link's configured loss dropped")
    queue_drops: int | None = column("uint64", "packets dropped because its queue was full")
    down_drops: int | None = column("uint64", "packets dropped because it was down")
    overflow_drops: int | None = column("uint64", "packets dropped because the emulation itself had no room")
    duplicated: int | None = column("uint64", "packets delivered twice")
    reordered: int | None = column("uint64", "packets that skipped the delay")
    queue_bytes_max: int | None = column("uint64", "most bytes that waited in the queue at once")
    delay_p50: float | None = column("float64", "median of the seconds from its queue's end to delivery")
    delay_p90: float | None = column("float64", "90th percentile of them")
    delay_p99: float | None = column("float64", "99th percentile of them")
    delay_max: float | None = column("float64", "longest of them")
    lateness_p50: float | None = column(
        "float64", "median of the seconds by which packets came later than the emulation meant"
    )
    lateness_p99: float | None = column("float64", "99th percentile of them")
    lateness_max: float | None = column("float64", "longest of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A row of ``queues``: a sample of a link's queue."""

    seconds: float = column("float64", "when, on the server's clock of the run")
    link: str = column("string", "name of the link")
    direction: str = column("string", "as in links")
    queue_bytes: int = column("uint64", "bytes that waited")
    queue_packets: int | None = column("uint64", "packets that waited")
    bytes_out: int = column("uint64", "bytes delivered so far")
    packets_out: int | None = column("uint64", "packets delivered so far")
    rate: float | None = column(
        "float64", "bits a second that were set then, 0 while it was down; null without a limit"
    )


def columns_of(row: type[Any]) -> tuple[Column, ...]:
    """Return the columns of a kind of row, in their order."""
    return tuple(Column(one.name, one.metadata["kind"], one.metadata["meaning"]) for one in fields(row))


ROWS: Final[Mapping[str, type[Any]]] = {
    "rounds": Round,
    "transfers": Transfer,
    "losses": Loss,
    "participants": Participant,
    "iterations": Iteration,
    "exchanges": Exchange,
    "evaluations": Evaluation,
    "parties": Party,
    "links": Link,
    "queues": Queue,
}
TABLES: Final[Mapping[str, tuple[Column, ...]]] = {name: columns_of(row) for name, row in ROWS.items()}
