"""The lines that a node's process on a graph writes while it works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

from thalweg.job.common.messages import Line
from thalweg.outcome.core import IterationReport, NeighbourExchange


def report_of(table: Line) -> IterationReport:
    """Return the core's report with the fields of ``table``. Raises TypeError for unknown or missing fields."""
    return IterationReport(**{**table, "exchanges": [NeighbourExchange(**one) for one in table["exchanges"]]})


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of a node's model. ``at`` is when it ended, ``seconds`` how long it took.

    ``accuracy`` and ``loss`` are None if the app's metrics have none.
    """

    seconds: float
    at: float
    metrics: Mapping[str, object]
    accuracy: float | None = None
    loss: float | None = None


@dataclass(frozen=True)
class Listening:
    """The node listens at ``address``, and its model has this size."""

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

    ``clock``: adding so many seconds to the node's times gives times on the run's clock. ``before`` and ``after`` are
    sketches of the model before and after mixing, in the text form of ``thalweg.record.nodes.packed``.
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
        """Return the line with the fields of ``table``. Raises TypeError for unknown or missing fields."""
        evaluation = table["evaluation"]
        made = {
            "report": report_of(table["report"]),
            "evaluation": None if evaluation is None else Evaluation(**evaluation),
        }
        return cls(**{**table, **made})

    def table(self) -> dict[str, object]:
        """Return the fields from which the record's entry is made."""
        evaluation = None if self.evaluation is None else vars(self.evaluation)
        return {**vars(self), "report": self.report.table(), "evaluation": evaluation}


@dataclass(frozen=True)
class Done:
    """The node has finished its last iteration."""

    say: ClassVar[str] = "done"


@dataclass(frozen=True)
class Ended:
    """The node's process has ended early. The run itself adds this line, since the process cannot."""

    why: str


NodeLine: TypeAlias = Listening | Met | Finished | Done
_KINDS: Final[Mapping[str, type[Listening | Met | Done]]] = {kind.say: kind for kind in (Listening, Met, Done)}


def encode(line: NodeLine) -> dict[str, object]:
    """Return a line's fields, ``say`` included."""
    fields = line.table() if isinstance(line, Finished) else vars(line)
    return {"say": line.say, **fields}


def decode(table: Line) -> NodeLine | None:
    """Return the line with the fields of ``table``; None for an unknown ``say``, because an app may print anything.

    Raises KeyError or TypeError for unknown or missing fields.
    """
    fields = {key: value for key, value in table.items() if key != "say"}
    if table["say"] == Finished.say:
        return Finished.of(fields)
    kind = _KINDS.get(str(table["say"]))
    return None if kind is None else kind(**fields)
