"""Reads a run's record for the report: every table with its types, or the reason why it is missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from thalweg import bounded_json
from thalweg.apps import FLOWER
from thalweg.errors import RecordError
from thalweg.record import Record, reading
from thalweg.record.tables import ends_of, rows, schema

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from thalweg.plan import Plan

Row: TypeAlias = dict[str, Any]

# Keys of each table. Rows without them are skipped.
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
    manifest: Mapping[str, Any]
    rounds: Sequence[Row]
    transfers: Sequence[Row]
    losses: Sequence[Row]
    participants: Sequence[Row]
    links: Sequence[Row]
    parties: Sequence[Row]
    samples: Sequence[Samples]
    # Tables of a job on a graph; empty for any other job.
    iterations: Sequence[Row] = ()
    exchanges: Sequence[Row] = ()
    evaluations: Sequence[Row] = ()

    @property
    def status(self) -> str:
        """The status of the run, such as complete or failed."""
        return str(self.manifest.get("status") or "not known")

    @property
    def reason(self) -> str | None:
        """The reason of the failure, if the run failed and the record has one."""
        reason = self.manifest.get("reason")
        return reason if isinstance(reason, str) else None

    @property
    def is_flower(self) -> bool:
        """Whether the run was of a Flower app. Then the app's strategy aggregates updates."""
        return self.plan.app is not None and self.plan.app.object.startswith(FLOWER)

    @property
    def trains_nothing(self) -> bool:
        """Whether clients only send a payload. The training time that they then report is that of an empty call."""
        return self.plan.is_payload and not self.plan.training.compute

    @property
    def algorithm(self) -> str:
        """The name of the aggregation algorithm, or of a Flower app's strategy."""
        return self.strategy or "the Flower app's own" if self.is_flower else self.plan.algorithm.name

    @property
    def strategy(self) -> str | None:
        """The strategy of a Flower app with Flower's own loop of rounds, such as ``Flower's FedAvg``; else None."""
        strategy = self.manifest.get("strategy")
        return f"Flower's {strategy}" if isinstance(strategy, str) else None

    @property
    def shape(self) -> str:
        """What kind of job it was: graph, Flower, tree or star."""
        if self.plan.job.graph is not None:
            return "graph"
        return "Flower" if self.is_flower else self.plan.aggregation.shape

    @property
    def emulation(self) -> str:
        """The kind of emulation, in the manifest's words."""
        return str(self.manifest.get("emulation") or "none")

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
        if any(row["client_accuracy"] is not None for row in self.rounds):
            return "its clients evaluated their own models, and the server none"
        if any(row[key] is not None for row in self.rounds for key in ("loss", "client_loss")):
            return f"{self.plan.label} reports a loss and no accuracy"
        return "no round of it was evaluated"

    def why_no_rounds(self) -> str:
        """Return why there are no rounds."""
        return f"the run is {self.status} and has no finished round"


def read_run(path: Path) -> Run:
    """Read the record in folder ``path``. Raises RecordError or PlanError if it is missing or damaged."""
    record = Record(path)
    manifest = finite(record.manifest)
    if not isinstance(manifest, dict):
        raise RecordError(f"{path / 'manifest.json'} is damaged: it is no object", "Restore it from a copy")
    journaled: dict[str, list[Row]] = {name: [] for name in KEYS if name not in WRITTEN}
    journaled |= {name: _journaled(record, manifest, name).to_pylist() for name in record.journaled}
    journaled["transfers"] = [_with_ends(row) for row in journaled["transfers"]]
    written = {name: _written(path, name) for name in WRITTEN if name != "queues"}
    return Run(
        label=path.resolve().name,
        path=path,
        plan=record.plan,
        manifest=manifest,
        **{name: finite(table) for name, table in journaled.items()},
        **{name: [] if table is None else finite(table.to_pylist()) for name, table in written.items()},
        samples=_samples(_written(path, "queues")),
    )


def _with_ends(transfer: Row) -> Row:
    """Return a transfer with its source and target; older tables lack these columns."""
    return transfer if transfer["source"] is not None else {**transfer, **ends_of(transfer)}


def finite(value: Any) -> Any:
    """Return a JSON value with None for numbers that are not finite, such as a loss that diverged."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, list) else value


def _journaled(record: Record, manifest: Mapping[str, Any], name: str) -> Any:
    """Return a table that is made from the journal. While a run goes on, the journal is newer than the table's file."""
    path = record.path / f"{name}.parquet"
    if manifest.get("status") != "running" and path.exists():
        return _parquet(path, name, f"Make it anew: thalweg export {record.path} --format parquet")
    import pyarrow

    try:
        return pyarrow.Table.from_pylist(list(rows(name, record.rounds())), schema=schema(name))
    except (pyarrow.ArrowException, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RecordError(
            f"the journal of {record.path} is damaged: its {name} cannot be read ({type(error).__name__}: {error})",
            "Remove the lines of journal.jsonl from the first damaged one on",
        ) from error


def _written(folder: Path, name: str) -> Any:
    path = folder / f"{name}.parquet"
    if not path.exists():
        return None
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
        said = " ".join(str(error).split())
        raise RecordError(f"{path} is damaged: {said[:200]}", hint) from error


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
    found = []
    for chosen in np.split(order, np.flatnonzero(np.diff(pairs[order])) + 1):
        link, direction = divmod(int(pairs[chosen[0]]), len(directions))
        found.append(
            Samples(links[link], directions[direction], **{name: column[chosen] for name, column in columns.items()})
        )
    return sorted(found, key=lambda one: (one.link, one.direction))


def json_object(text: str | None) -> dict[str, Any]:
    """Return the object in a cell's JSON text, or an empty one."""
    try:
        value = bounded_json.read(text or "{}")
    except ValueError:
        return {}
    return finite(value) if isinstance(value, dict) else {}
