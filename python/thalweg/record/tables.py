"""The three tables of a record: their columns, and how a round's journal entry becomes rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple, TypeAlias

Entry: TypeAlias = Mapping[str, Any]
Row: TypeAlias = dict[str, Any]


class Column(NamedTuple):
    """A column: its name, its Arrow type, what it holds (times in seconds). Any value may be null."""

    name: str
    type: str
    meaning: str


ROUNDS: Final = (
    Column("round", "uint32", "number of the round, from 1"),
    Column("accuracy", "float64", "of the global model on the test set, 0 to 1 (FedComm section III.C step 7)"),
    Column("loss", "float64", "mean cross-entropy of the global model on the test set"),
    Column("seconds", "float64", "from the begin of the round to its mean, without the evaluation"),
    Column("communication_seconds", "float64", "in which at least one update was under way"),
    Column("compute_seconds", "float64", "that clients trained, their mean"),
    Column("fedcomm_communication_seconds", "float64", "seconds less compute_seconds: what FedComm's code reports"),
    Column("evaluation_seconds", "float64", "that the evaluation took"),
    Column("bytes_down", "uint64", "on all links towards clients"),
    Column("bytes_up", "uint64", "on all links from clients"),
    Column("participants", "uint32", "clients whose update counts, whole or in part"),
    Column("expected", "uint32", "clients that were expected"),
    Column("complete", "bool", "whether all expected updates count whole"),
    Column("fold", "string", "JSON object of what the aggregation did"),
)
TRANSFERS: Final = (
    Column("round", "uint32", "number of the round"),
    Column("client", "string", "the client at one end"),
    Column("direction", "string", "down: from the server, up: to the server"),
    Column("bytes", "uint64", "of the update that arrived"),
    Column("wire_bytes", "uint64", "on the link in that direction meanwhile, headers and repeats included"),
    Column("send_start", "float64", "first byte given to the transport, on the server's clock of the run"),
    Column("send_end", "float64", "last byte given to the transport"),
    Column("receive_start", "float64", "first byte received"),
    Column("receive_end", "float64", "last byte received"),
    Column("retransmissions", "uint64", "segments the sender sent again; null where nobody counts them"),
    Column("duplicates", "uint64", "chunks that came more than once"),
    Column("corrupt", "uint64", "chunks that came damaged"),
    Column("copied", "uint64", "bytes of payload copied in user space at the server"),
    Column("resumed", "uint32", "times the link broke and only what was missing was sent again"),
    Column("complete", "bool", "whether all of it arrived"),
)
PARTICIPANTS: Final = (
    Column("round", "uint32", "number of the round"),
    Column("client", "string", "name of the client"),
    Column("state", "string", "whole, partial, lost, rejected or late"),
    Column("samples", "uint64", "weight of its update"),
    Column("coverage", "float64", "fraction of its update that is in the mean, 0 to 1"),
    Column("reason", "string", "why it is not whole"),
    Column("train_seconds", "float64", "that it trained"),
    Column("metrics", "string", "JSON object of what it reported"),
)
TABLES: Final[Mapping[str, tuple[Column, ...]]] = {
    "rounds": ROUNDS,
    "transfers": TRANSFERS,
    "participants": PARTICIPANTS,
}


def entry(outcome: Mapping[str, Any], evaluation: Mapping[str, Any], evaluation_seconds: float | None) -> Row:
    """Return the journal's entry of a round from the core's outcome and the global model's evaluation."""
    compute = [m["train_seconds"] for m in map(metrics_of, outcome["participants"]) if "train_seconds" in m]
    mean = fmean(compute) if compute else None
    counted = [part for part in outcome["participants"] if part["state"] in ("whole", "partial")]
    return {
        "round": outcome["round"],
        "accuracy": evaluation.get("accuracy"),
        "loss": evaluation.get("loss"),
        "seconds": outcome["seconds"],
        "communication_seconds": outcome["communication_seconds"],
        "compute_seconds": mean,
        "fedcomm_communication_seconds": None if mean is None else outcome["seconds"] - mean,
        "evaluation_seconds": evaluation_seconds,
        "bytes_down": outcome["bytes_down"],
        "bytes_up": outcome["bytes_up"],
        "participants": len(counted),
        "expected": outcome["expected"],
        "complete": outcome["complete"],
        "fold": outcome.get("fold"),
        "clients": outcome["participants"],
        "transfers": outcome["transfers"],
    }


def metrics_of(participant: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a participant's metrics, which cross the wire as JSON text and may be anything a client likes."""
    metrics = participant.get("metrics")
    return metrics if isinstance(metrics, dict) else {}


def rows(table: str, entries: Iterable[Entry]) -> list[Row]:
    """Return the rows of a table, every column present."""
    make = _MAKERS[table]
    return [{column.name: row.get(column.name) for column in TABLES[table]} for e in entries for row in make(e)]


def write_parquet(folder: Path, entries: Iterable[Entry]) -> None:
    """Write all tables to ``folder``; each appears whole or not at all. Raises OSError."""
    import pyarrow.parquet

    entries = list(entries)
    for name in TABLES:
        part = folder / f".{name}.parquet.part"
        table = pyarrow.Table.from_pylist(rows(name, entries), schema=schema(name))
        try:
            pyarrow.parquet.write_table(table, part)
            part.replace(folder / f"{name}.parquet")
        finally:
            part.unlink(missing_ok=True)


def schema(table: str) -> Any:
    """Return the pyarrow schema of a table; each field's metadata carries its meaning."""
    import pyarrow

    fields = [
        pyarrow.field(c.name, pyarrow.type_for_alias(c.type), metadata={"meaning": c.meaning}) for c in TABLES[table]
    ]
    return pyarrow.schema(fields)


def _rounds(entry: Entry) -> list[Row]:
    return [{**entry, "fold": _json(entry.get("fold"))}]


def _transfers(entry: Entry) -> list[Row]:
    return [{**transfer, "round": entry["round"]} for transfer in entry["transfers"]]


def _participants(entry: Entry) -> list[Row]:
    return [
        {
            **part,
            "round": entry["round"],
            "train_seconds": metrics_of(part).get("train_seconds"),
            "metrics": _json(metrics_of(part)),
        }
        for part in entry["clients"]
    ]


def _json(value: object) -> str | None:
    return None if value is None else json.dumps(value, sort_keys=True)


_MAKERS: Final[Mapping[str, Callable[[Entry], list[Row]]]] = {
    "rounds": _rounds,
    "transfers": _transfers,
    "participants": _participants,
}
