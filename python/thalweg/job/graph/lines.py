"""The lines that a node's process on a graph writes while it works, and the core's report of an iteration in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

from thalweg.job.common.messages import Line


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

    @classmethod
    def of(cls, table: Line) -> IterationReport:
        """Return the report whose fields a table has. Raises TypeError for unknown or missing fields."""
        return cls(**{**table, "exchanges": [NeighbourExchange(**one) for one in table["exchanges"]]})

    @property
    def incomplete(self) -> list[str]:
        """Names of the neighbours whose model did not arrive as a whole."""
        return [one.peer for one in self.exchanges if one.peer not in self.whole]

    def table(self) -> dict[str, object]:
        """Return its fields by name, with a table for each neighbour, as the record keeps it."""
        return {**vars(self), "exchanges": [vars(one) for one in self.exchanges]}


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of a node's model: when it ended, how long it took, and the app's metrics.

    ``accuracy`` and ``loss`` are None if the app gave none.
    """

    seconds: float
    at: float
    metrics: Mapping[str, object]
    accuracy: float | None = None
    loss: float | None = None


@dataclass(frozen=True)
class Listening:
    """The node listens, with a model of this size."""

    say: ClassVar[str] = "here"
    address: str
    update_bytes: int
    tensors: int
    parameters: int


@dataclass(frozen=True)
class Met:
    """The node is connected to all its neighbours."""

    say: ClassVar[str] = "met"


@dataclass(frozen=True)
class Finished:
    """The node has finished an iteration.

    ``clock``: seconds to add to the node's times to get times on the run's clock. ``before`` and ``after`` are sketches
    of the model before and after mixing, in the text form of ``thalweg.record.nodes.packed``.
    """

    say: ClassVar[str] = "iteration"
    number: int
    report: IterationReport
    clock: float
    skipped: int
    samples: int
    metrics: Mapping[str, object]
    evaluation: Evaluation | None
    before: str
    after: str

    @classmethod
    def of(cls, table: Line) -> Finished:
        """Return the line whose fields a table has. Raises TypeError for unknown or missing fields."""
        evaluation = table["evaluation"]
        made = {
            "report": IterationReport.of(table["report"]),
            "evaluation": None if evaluation is None else Evaluation(**evaluation),
        }
        return cls(**{**table, **made})

    def table(self) -> dict[str, object]:
        """Return the table from which the record's entry is made."""
        evaluation = None if self.evaluation is None else vars(self.evaluation)
        return {**vars(self), "report": self.report.table(), "evaluation": evaluation}


@dataclass(frozen=True)
class Done:
    """The node has finished its last iteration."""

    say: ClassVar[str] = "done"


@dataclass(frozen=True)
class Ended:
    """The node's process has ended early. The run makes this line itself."""

    why: str


NodeLine: TypeAlias = Listening | Met | Finished | Done
_KINDS: Final[Mapping[str, type[Listening | Met | Done]]] = {kind.say: kind for kind in (Listening, Met, Done)}


def encode(line: NodeLine) -> dict[str, object]:
    """Return a line's table."""
    fields = line.table() if isinstance(line, Finished) else vars(line)
    return {"say": line.say, **fields}


def decode(table: Line) -> NodeLine | None:
    """Return the line whose fields a table has; None for any other table, since an app may print anything.

    Raises KeyError or TypeError for unknown or missing fields.
    """
    fields = {key: value for key, value in table.items() if key != "say"}
    if table["say"] == Finished.say:
        return Finished.of(fields)
    kind = _KINDS.get(str(table["say"]))
    return None if kind is None else kind(**fields)
