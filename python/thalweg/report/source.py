"""Reads a run's record for the report: every table with its types, or the reason why it is missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from thalweg import bounded_json, extras
from thalweg.apps import FLOWER
from thalweg.errors import RecordError
from thalweg.record import Record, reading
from thalweg.record.facts import Facts
from thalweg.record.rows import (
    ROWS,
    Evaluation,
    Exchange,
    Iteration,
    Link,
    Loss,
    Participant,
    Party,
    Round,
    Transfer,
)
from thalweg.record.tables import ends_of, is_written, read_table, rows, schema

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from thalweg.plan import Plan
    from thalweg.record.columns import Row

# Columns that identify a row of each table. Rows that lack one of them are skipped.
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "rounds": ("round",),
    "transfers": ("round", "client", "direction"),
    "losses": ("round", "client", "direction", "tensor"),
    "participants": ("round", "client"),
    "links": ("link", "direction"),
    "queues": ("seconds", "link", "direction", "queue_bytes", "bytes_out"),
    "parties": ("party",),
    "iterations": ("round", "node"),
    "exchanges": ("round", "node", "neighbour"),
    "evaluations": ("round", "node"),
}
# Tables that a run writes at its end; the others are made from its journal.
WRITTEN: Final = ("links", "queues", "parties")
_NAMES: Final = ("link", "direction")
_SAMPLED: Final = ("seconds", "queue_bytes", "bytes_out", "rate")


@dataclass(frozen=True)
class Samples:
    """Samples of one direction of a link.

    ``seconds`` ascend, on the server's clock of the run. ``queue_bytes`` is the queue at that time, ``bytes_out`` the
    sum of bytes so far, ``rate`` the limit in bits a second, or NaN without one. All are float64 and equally long.
    """

    link: str
    direction: str
    seconds: NDArray[np.float64]
    queue_bytes: NDArray[np.float64]
    bytes_out: NDArray[np.float64]
    rate: NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """A record that was read. ``label`` is its name in the report."""

    label: str
    path: Path
    plan: Plan
    manifest: Facts
    rounds: Sequence[Round]
    transfers: Sequence[Transfer]
    losses: Sequence[Loss]
    participants: Sequence[Participant]
    links: Sequence[Link]
    parties: Sequence[Party]
    samples: Sequence[Samples]
    # Tables of a job on a graph; empty for any other job.
    iterations: Sequence[Iteration] = ()
    exchanges: Sequence[Exchange] = ()
    evaluations: Sequence[Evaluation] = ()

    @property
    def status(self) -> str:
        """The status of the run, such as complete or failed."""
        return self.manifest.text("status") or "not known"

    @property
    def reason(self) -> str | None:
        """The reason of the failure, if the run failed and the record has one."""
        return self.manifest.text("reason")

    @property
    def system(self) -> str | None:
        """The name of the other system that did the rounds; None for thalweg."""
        return self.manifest.part("system").text("name")

    @property
    def is_flower(self) -> bool:
        """Whether the run was of a Flower app. Then the app's strategy aggregates updates."""
        return self.plan.app is not None and self.plan.app.object.startswith(FLOWER)

    @property
    def trains_nothing(self) -> bool:
        """Whether clients only send a payload. The training time that they report then measures an empty call."""
        return self.plan.is_payload and not self.plan.training.compute

    @property
    def algorithm(self) -> str:
        """The name of the aggregation algorithm, or of a Flower app's strategy."""
        return self.strategy or "the Flower app's own" if self.is_flower else self.plan.algorithm.name

    @property
    def strategy(self) -> str | None:
        """The strategy of a Flower app with Flower's own loop of rounds, such as ``Flower's FedAvg``; else None."""
        strategy = self.manifest.text("strategy")
        return None if strategy is None else f"Flower's {strategy}"

    @property
    def shape(self) -> str:
        """What kind of job it was: graph, Flower, tree or star."""
        if self.plan.job.graph is not None:
            return "graph"
        return "Flower" if self.is_flower else self.plan.aggregation.shape

    @property
    def emulation(self) -> str:
        """The kind of emulation, in the manifest's words."""
        return self.manifest.text("emulation") or "none"

    def why_no_links(self) -> str:
        """Return why there are no data about links."""
        if not self.emulation.startswith("packet"):
            return f"links are looked into by packet-level emulation only, and the run's emulation is {self.emulation}"
        return f"the run is {self.status} and left no table of its links"

    def why_no_accuracy(self) -> str:
        """Return why there is no accuracy."""
        if not self.rounds:
            return self.why_no_rounds()
        if self.plan.is_payload:
            return f"{self.plan.model.name} is moved and not trained, so that it has no accuracy"
        if any(row.client_accuracy is not None for row in self.rounds):
            return "its clients evaluated their own models, and the server none"
        if any(row.loss is not None or row.client_loss is not None for row in self.rounds):
            return f"{self.plan.label} reports a loss and no accuracy"
        return "no round of it was evaluated"

    def why_no_rounds(self) -> str:
        """Return why there are no rounds."""
        return f"the run is {self.status} and has no finished round"


def read_run(path: Path) -> Run:
    """Read the record in folder ``path``. Raises RecordError or PlanError if it is missing or damaged.

    Raises PackageError without pyarrow.
    """
    record = Record(path)
    extras.require(f"reading {path}", "pyarrow")
    manifest = Facts.of(finite(record.manifest))
    journaled = {name: _rows(name, _journaled(record, manifest, name)) for name in record.journaled}
    return Run(
        label=path.resolve().name,
        path=path,
        plan=record.plan,
        manifest=manifest,
        **{name: journaled.get(name, []) for name in KEYS if name not in WRITTEN},
        **{name: _rows(name, _written(path, name)) for name in WRITTEN if name != "queues"},
        samples=_samples(_written(path, "queues")),
    )


def _rows(name: str, table: Any) -> list[Any]:
    """Return the rows of a table, none if there is no table. Older tables lack the ends of a transfer."""
    typed_rows = [] if table is None else [ROWS[name](**finite(row)) for row in table.to_pylist()]
    return list(map(_with_ends, typed_rows)) if name == "transfers" else typed_rows


def _with_ends(transfer: Transfer) -> Transfer:
    if transfer.source is not None:
        return transfer
    source, target = ends_of(transfer.client, transfer.direction)
    return replace(transfer, source=source, target=target)


def finite(value: Any) -> Any:
    """Return a JSON value with None for numbers that are not finite, such as a loss that diverged."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, list) else value


def _journaled(record: Record, manifest: Facts, name: str) -> Any:
    """Return a table that is made from the journal. While a run goes on, the journal is newer than the table's file."""
    path = record.path / f"{name}.parquet"
    if manifest.text("status") != "running" and path.exists():
        return _parquet(path, name, f"Make it anew: thalweg export {record.path} --format parquet")
    try:
        return _table_of(name, rows(name, record.rounds()))
    except ValueError as error:
        raise RecordError(
            f"the journal of {record.path} is damaged: its {name} cannot be read ({error})",
            "Remove the lines of journal.jsonl from the first damaged one on",
        ) from error


def _table_of(name: str, content: Iterable[Row]) -> Any:
    """Return rows as a table. Raises ValueError if they do not fit."""
    import pyarrow

    try:
        return pyarrow.Table.from_pylist(list(content), schema=schema(name))
    except (pyarrow.ArrowException, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _written(folder: Path, name: str) -> Any:
    path = folder / f"{name}.parquet"
    if not is_written(folder, name):
        return None
    if not path.exists():  # the run had no pyarrow, or was killed
        try:
            return _table_of(name, (row for row in read_table(folder, name) if None not in map(row.get, KEYS[name])))
        except ValueError as error:
            hint = "Remove it; the report goes without it"
            raise RecordError(f"{folder / name}.jsonl is damaged: {error}", hint) from error
    return _parquet(path, name, "Restore it from a copy, or remove it; the report goes without it")


def _parquet(path: Path, name: str, hint: str) -> Any:
    """Return the columns of a file with their types; columns that it lacks are null. Raises RecordError."""
    import pyarrow

    try:
        table = reading.table(path)
        lacking = [key for key in KEYS[name] if key not in table.column_names]
        if lacking:
            raise RecordError(f"{path} is damaged: it has no column {lacking[0]}", hint)
        columns = [
            table[field.name].cast(field.type)
            if field.name in table.column_names
            else pyarrow.nulls(table.num_rows, field.type)
            for field in schema(name)
        ]
        whole = pyarrow.Table.from_arrays(columns, schema=schema(name))
        return whole.filter(_keyed(whole, KEYS[name]))
    except (pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
        text = " ".join(str(error).split())
        raise RecordError(f"{path} is damaged: {text[:200]}", hint) from error


def _keyed(table: Any, keys: Sequence[str]) -> Any:
    """Return which rows have values for all ``keys``."""
    import pyarrow.compute

    mask = pyarrow.compute.is_valid(table[keys[0]])
    for key in keys[1:]:
        mask = pyarrow.compute.and_(mask, pyarrow.compute.is_valid(table[key]))
    return mask


def _samples(table: Any) -> list[Samples]:
    """Return the samples of each direction of each link, sorted by name."""
    if table is None or not table.num_rows:
        return []
    import numpy as np

    columns = {name: table[name].to_numpy().astype(np.float64) for name in _SAMPLED}
    codes = [table[name].combine_chunks().dictionary_encode() for name in _NAMES]
    links, directions = ([str(word) for word in code.dictionary.to_pylist()] for code in codes)
    pairs = codes[0].indices.to_numpy().astype(np.int64) * len(directions) + codes[1].indices.to_numpy()
    order = np.lexsort((columns["seconds"], pairs))
    series = []
    for chosen in np.split(order, np.flatnonzero(np.diff(pairs[order])) + 1):
        link, direction = divmod(int(pairs[chosen[0]]), len(directions))
        series.append(
            Samples(links[link], directions[direction], **{name: column[chosen] for name, column in columns.items()})
        )
    return sorted(series, key=lambda one: (one.link, one.direction))


def json_object(text: str | None) -> dict[str, object]:
    """Return the object in a cell's JSON text, or an empty one."""
    try:
        value = bounded_json.read(text or "{}")
    except ValueError:
        return {}
    return finite(value) if isinstance(value, dict) else {}
