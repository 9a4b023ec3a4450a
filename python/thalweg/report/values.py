"""The numbers of a report as values. ``--json`` prints their fields under the same names.

Sizes are in bytes, times in seconds, rates in bits a second, shares from 0 to 1; None if a number is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thalweg.wire import table_of

if TYPE_CHECKING:
    from thalweg.record.rows import Link, Party
    from thalweg.report.split import Split


@dataclass(frozen=True, slots=True)
class Spread:
    """Count, minimum, median and maximum of values."""

    count: int
    min: float
    median: float
    max: float


@dataclass(frozen=True, slots=True)
class RoundNumbers:
    """A round: its columns in the record, with the sums over rounds so far and the least communication.

    ``elapsed_seconds`` is the sum of the rounds' times so far, ``bound_seconds`` the least time for communication, and
    ``bound_elapsed_seconds`` the sum of the rounds' times if each had taken only that.
    """

    round: int
    accuracy: float | None
    loss: float | None
    client_accuracy: float | None
    client_loss: float | None
    seconds: float | None
    elapsed_seconds: float | None
    communication_seconds: float | None
    compute_seconds: float | None
    split: Split | None
    fedcomm_seconds: float | None
    fedcomm_communication_seconds: float | None
    bound_seconds: float | None
    bound_elapsed_seconds: float | None
    share_of_bound: float | None
    goodput_bits_per_second: float | None
    bytes_down: int | None
    bytes_up: int | None
    participants: int | None
    expected: int | None
    complete: bool | None


@dataclass(frozen=True, slots=True)
class LinkNumbers:
    """A direction of a link, its configured shape, and the shares of packets that were lost or overflowed its queue."""

    row: Link
    nominal: Mapping[str, object]
    lost_share: float | None
    queue_drop_share: float | None

    def table(self) -> dict[str, object]:
        """Return the columns of the link with the other numbers, for JSON."""
        own = {"nominal": self.nominal, "lost_share": self.lost_share, "queue_drop_share": self.queue_drop_share}
        return {**table_of(self.row), **own}


@dataclass(frozen=True, slots=True)
class PartyNumbers:
    """What a party used, and the load that was put on it, if there was any."""

    row: Party
    stress: Mapping[str, object] | None

    def table(self) -> dict[str, object]:
        """Return the columns of the party, for JSON."""
        return {**table_of(self.row), "stress": self.stress}


@dataclass(frozen=True, slots=True)
class MachineNumbers:
    """The machine on which a run was recorded."""

    cpu: str | None
    cores: int | None
    memory_bytes: int | None
    kernel: str | None


@dataclass(frozen=True, slots=True)
class BuildNumbers:
    """The thalweg that wrote a record."""

    version: str | None
    commit: str | None


@dataclass(frozen=True, slots=True)
class NodeNumbers:
    """A node of a graph: medians over its iterations, and the time at which it finished the last one."""

    node: str
    degree: int
    iterations: int
    train_seconds: float | None
    exchange_seconds: float | None
    seconds: float | None
    timed_out: int
    skipped: int
    chunks_used: float | None
    finished: float | None


@dataclass(frozen=True, slots=True)
class Gaps:
    """How far apart neighbours finished, in seconds: a spread over nodes."""

    mean: float
    median: float
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class GraphNumbers:
    """A job on a graph. ``edges`` are pairs of positions in ``nodes``."""

    word: str | None
    spectral_gap: float | None
    nodes: Sequence[NodeNumbers]
    edges: Sequence[tuple[int, int]]
    slow: Sequence[str]
    sentence: str
    finish_gap_seconds: Gaps | None
    timed_out: int
    chunks_used: float | None
    drift: float | None
    disagreement: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The numbers of a run that a cell needs, whether or not the run left a record."""

    record: str
    status: str
    reason: str | None
    model: str
    clients: int
    #: What kind of job it was: graph, Flower, tree or star.
    shape: str = "star"
    #: The other system that did the rounds; None for thalweg.
    system: str | None = None
    transport: str
    congestion_control: str | None = None
    unasked_congestion_control: str | None = None
    network: str
    repair: str
    setting: str
    retransmissions: int | None = None
    each_round: Sequence[RoundNumbers] = ()


def unit(runs: Iterable[Compared]) -> str:
    """Return the word for a round of these runs: iteration if all are on graphs."""
    return "iteration" if {run.shape for run in runs} == {"graph"} else "round"


def unit_with_article(runs: Iterable[Compared]) -> str:
    """Return ``unit`` with its article."""
    word = unit(runs)
    return f"an {word}" if word == "iteration" else f"a {word}"


def members(count: int, shape: str) -> str:
    """Return the number of clients of a job, or of nodes on a graph, in words."""
    return f"{count} {'nodes' if shape == 'graph' else 'clients'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNumbers(Compared):
    """All numbers of a run."""

    label: str
    started: str | None
    algorithm: str
    seed: int
    emulation: str
    emulation_reason: str | None
    rounds: int
    rounds_planned: int
    accuracy: float | None
    loss: float | None
    client_accuracy: float | None
    client_loss: float | None
    best_accuracy: float | None
    seconds: Spread | None
    communication_seconds: Spread | None
    fedcomm_communication_seconds: Spread | None
    goodput_bits_per_second: Spread | None
    bound_seconds: Spread | None
    share_of_bound: Spread | None
    bound_source: str | None
    bytes_down: int | None
    bytes_up: int | None
    machine: MachineNumbers
    thalweg: BuildNumbers
    graph: GraphNumbers | None
    links: Sequence[LinkNumbers]
    parties: Sequence[PartyNumbers]


@dataclass(frozen=True, slots=True)
class CellNumbers:
    """A transport in a network: over rounds the time with its extremes, and medians of the rest."""

    transport: str
    network: str
    runs: int
    failed: int
    reasons: Sequence[str]
    seconds: Spread | None
    communication_seconds: Spread | None
    bound_seconds: float | None
    share_of_bound: float | None
    goodput_bits_per_second: float | None
    retransmissions: float | None
    records: Sequence[str]


@dataclass(frozen=True, slots=True)
class TracedLink:
    """A link of a trace: ``lines`` of it, what it delivered and lost, its round trips, and shares of its ``waits``."""

    file: str
    link: str
    peer: str
    lines: int
    seconds: float
    delivered: float | None
    lost: float | None
    path_loss: float | None
    rtt_min: float | None
    rtt_median: float | None
    rtt_max: float | None
    waits: Mapping[str, float]
