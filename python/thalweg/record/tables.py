"""The tables of a record: their columns, and how a round's journal entry becomes rows.

``journaled`` names the tables that are made from the journal. ``parties`` is written when a run ends; ``links`` and
``queues`` are too, if the run had an emulated network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, Final, cast

from thalweg import bounded_json, extras, wire
from thalweg.apps.metrics import checked_usage, evaluated, of_clients
from thalweg.errors import RecordError
from thalweg.outcome import ClientUsage, Entry, Participant, RecordedTransfer, tables
from thalweg.outcome.core import Outcome, Transfer
from thalweg.record import nodes, reading
from thalweg.record.columns import Row, array_of
from thalweg.record.rows import TABLES
from thalweg.ui import strict_json
from thalweg.ui.strict_json import number
from thalweg.wire import Table

# Name of the server among the parties.
SERVER: Final = "server"
# Maximum number of rows of a table in memory at a time; also the number of rows of a row group in the file.
GROUP: Final = 2_000
# The file name's end of a table: with pyarrow, and without it.
PARQUET: Final = ".parquet"
LINES: Final = ".jsonl"
# Tables that can be made from the journal at any time: for a job with a server, and for a job on a graph.
JOURNALED: Final = ("rounds", "transfers", "losses", "participants")
ON_GRAPHS: Final = ("rounds", *nodes.MAKERS)


def journaled(*, graph: bool) -> tuple[str, ...]:
    """Return the tables that are made from the journal of a job with a server, or of a job on a graph."""
    return ON_GRAPHS if graph else JOURNALED


def entry(outcome: Outcome, evaluation: Table, evaluation_seconds: float | None) -> Entry:
    """Return the journal's entry of a round from the core's outcome and the global model's evaluation.

    Raises MetricsError if ``accuracy`` or ``loss`` is not a number.
    """
    usages = [part.usage for part in outcome.participants if part.usage is not None]
    compute = [usage.train_seconds for usage in usages if usage.train_seconds is not None]
    mean = fmean(compute) if compute else None
    window = _fedcomm_seconds(outcome)
    figures, clients = evaluated(evaluation), of_clients(outcome)
    return {
        "round": outcome.round,
        "accuracy": figures.get("accuracy"),
        "loss": figures.get("loss"),
        "client_accuracy": clients.get("client_accuracy"),
        "client_loss": clients.get("client_loss"),
        "seconds": outcome.seconds,
        "communication_seconds": outcome.communication_seconds,
        "compute_seconds": mean,
        "fedcomm_seconds": window,
        "fedcomm_communication_seconds": None if mean is None or window is None else window - mean,
        "evaluation_seconds": evaluation_seconds,
        "bytes_down": outcome.bytes_down,
        "bytes_up": outcome.bytes_up,
        "participants": len(outcome.counting),
        "expected": outcome.expected,
        "complete": outcome.complete,
        "fold": wire.values_of(outcome.fold),
        "clients": wire.values_of(outcome.participants),
        "transfers": [_recorded(one, outcome) for one in outcome.transfers],
    }


def ends_of(client: str, direction: str) -> tuple[str | None, str | None]:
    """Return source and target of a transfer of ``client``. They follow from the direction; older records lack them.

    Both are None if the direction is neither down nor up.
    """
    return {"down": (SERVER, client), "up": (client, SERVER)}.get(direction, (None, None))


def _fedcomm_seconds(outcome: Outcome) -> float | None:
    """Return the seconds of a round from when the transport accepted the model's last byte until the mean was made.

    This is how FedComm counts: its server measures train() and aggregate(), after it has sent the model to all clients.
    That time starts when the last send call returns, so it includes the transfer of the bytes that are then still in
    flight.
    """
    known = [way.send_end for way in outcome.transfers if way.direction == "down" and way.send_end is not None]
    if not known or outcome.start is None:
        return None
    return max(0.0, outcome.start + outcome.seconds - max(known))


def _congestion(transfer: Transfer, outcome: Outcome) -> str | None:
    """Return the congestion control of a transfer's sender. The server knows its own; a client reports it."""
    if transfer.direction == "down":
        return outcome.congestion_control
    reported = (part.usage for part in outcome.participants if part.client == transfer.client)
    return next((None if usage is None else usage.congestion_control for usage in reported), None)


def usage_of(participant: Participant) -> ClientUsage:
    """Return the resource usage of a participant's process from the journal.

    Older records lack ``usage`` and have it among the metrics.
    """
    usage = participant.get("usage")
    return checked_usage(participant.get("metrics"))[0] if usage is None else usage


def restored(entry: Row) -> Entry:
    """Return a journal's entry in which the strings for numbers that are not finite are numbers again."""
    return cast("Entry", _with_numbers("rounds", entry))


def _with_numbers(table: str, row: Row) -> Row:
    """Return a row of JSON in which the strings for numbers that are not finite are numbers again."""
    for column in TABLES[table]:
        if column.type == "float64" and column.name in row:
            row[column.name] = number(row[column.name])
    return row


def rows(table: str, entries: Iterable[Entry]) -> Iterator[Row]:
    """Yield the rows of a table that is made from the journal. Every row has all columns."""
    make = _MAKERS[table]
    for entry in entries:
        for row in make(entry):
            yield {column.name: row.get(column.name) for column in TABLES[table]}


def write_parquet(folder: Path, entries: Iterable[Entry], names: Sequence[str] = JOURNALED) -> None:
    """Write the tables that are made from the journal to ``folder``, in one pass over it. Raises OSError.

    Memory does not grow with the number of entries.
    """
    with ExitStack() as stack:
        writers = {name: stack.enter_context(_writing(folder, name)) for name in names}
        for entry in entries:
            for name, write in writers.items():
                write(rows(name, [entry]))


def write_table(folder: Path, name: str, batches: Iterable[Iterable[Row]]) -> None:
    """Write a table to ``folder`` batch by batch. The file appears atomically. Raises OSError.

    Without pyarrow its rows are lines of JSON.
    """
    with (_writing if extras.has("pyarrow") else _writing_lines)(folder, name) as write:
        for batch in batches:
            write(batch)


def replace_table(folder: Path, name: str, content: Iterable[Row]) -> None:
    """Write a table as ``write_table`` does, and remove it in its other form. Raises OSError."""
    write_table(folder, name, [content])
    remove(folder, [name], LINES if extras.has("pyarrow") else PARQUET)


def remove(folder: Path, names: Iterable[str], suffix: str) -> None:
    """Remove files of tables that an earlier process of the run wrote. Raises OSError."""
    for name in names:
        (folder / f"{name}{suffix}").unlink(missing_ok=True)


@contextmanager
def _writing(folder: Path, name: str) -> Iterator[Callable[[Iterable[Row]], None]]:
    """Give a function that adds rows to a table; at most ``GROUP`` rows wait in memory."""
    import pyarrow.parquet

    part, columns = folder / f".{name}{PARQUET}.part", schema(name)
    waiting: list[Row] = []

    def flush() -> None:
        made = [array_of([row.get(one.name) for row in waiting], one.type) for one in TABLES[name]]
        writer.write_table(pyarrow.Table.from_arrays(made, schema=columns))
        waiting.clear()

    def write(more: Iterable[Row]) -> None:
        for row in more:
            waiting.append(row)
            if len(waiting) == GROUP:
                flush()

    try:
        with pyarrow.parquet.ParquetWriter(part, columns) as writer:
            yield write
            if waiting:
                flush()
        part.replace(folder / f"{name}{PARQUET}")
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _writing_lines(folder: Path, name: str) -> Iterator[Callable[[Iterable[Row]], None]]:
    """Give a function that adds rows to a table, each as a line of JSON."""
    part = folder / f".{name}{LINES}.part"
    try:
        with part.open("w") as stream:
            yield lambda more: stream.writelines(strict_json.dumps(row) + "\n" for row in more)
        part.replace(folder / f"{name}{LINES}")
    finally:
        part.unlink(missing_ok=True)


def is_written(folder: Path, name: str) -> bool:
    """Return whether the record has a file of this table."""
    return any((folder / f"{name}{suffix}").exists() for suffix in (PARQUET, LINES))


def read_table(folder: Path, name: str) -> list[Row]:
    """Return the rows of a table in the record; an empty list if the run wrote none.

    Raises OSError, RecordError for a damaged line, and PackageError for a Parquet file without pyarrow.
    """
    path = folder / f"{name}{PARQUET}"
    if not path.exists():
        return list(_lines(folder / f"{name}{LINES}", name))
    table_rows: list[Row] = reading.table(path).to_pylist()
    return table_rows


def _lines(path: Path, name: str) -> Iterator[Row]:
    """Yield the rows of a file of JSON lines, none if there is no file."""
    if not path.exists():
        return
    with reading.opened(path) as stream:
        for number, line in enumerate(reading.lines(stream), 1):
            if not line.endswith(b"\n"):  # a crash cut it short
                return
            try:
                row = bounded_json.read_object(line)
            except bounded_json.JsonError as error:
                cause = f"line {number} of {path} is damaged"
                raise RecordError(cause, "Remove that line and those after it") from error
            yield _with_numbers(name, {column.name: row.get(column.name) for column in TABLES[name]})


def schema(table: str) -> Any:
    """Return the pyarrow schema of a table; each field's metadata carries its meaning."""
    import pyarrow

    fields = [
        pyarrow.field(c.name, pyarrow.type_for_alias(c.type), metadata={"meaning": c.meaning}) for c in TABLES[table]
    ]
    return pyarrow.schema(fields)


def _recorded(transfer: Transfer, outcome: Outcome) -> RecordedTransfer:
    """Return the journal's transfer as a row: with both ends, and the congestion control of its sender."""
    source, target = ends_of(transfer.client, transfer.direction)
    own: tables.Transfer = wire.values_of(transfer)
    return {**own, "source": source, "target": target, "congestion_control": _congestion(transfer, outcome)}


def _ends(transfer: RecordedTransfer) -> Row:
    return dict(zip(("source", "target"), ends_of(transfer["client"], transfer["direction"]), strict=True))


def _rounds(entry: Entry) -> list[Row]:
    return [{**entry, "fold": _json(entry.get("fold"))}]


def _transfers(entry: Entry) -> list[Row]:
    return [{**_ends(transfer), **transfer, "round": entry["round"]} for transfer in entry["transfers"]]


def _losses(entry: Entry) -> list[Row]:
    """Return a row for each tensor of which bytes were missing. Older records have no such list."""
    return [
        {**loss, "round": entry["round"], "client": transfer["client"], "direction": transfer["direction"]}
        for transfer in entry["transfers"]
        for loss in transfer.get("losses") or ()
    ]


def _participants(entry: Entry) -> list[Row]:
    return [
        {
            **part,
            "round": entry["round"],
            "train_seconds": usage_of(part).get("train_seconds"),
            "accuracy": part.get("evaluation", {}).get("accuracy"),
            "loss": part.get("evaluation", {}).get("loss"),
            "metrics": _json(part["metrics"]),
            "usage": _json(usage_of(part)),
        }
        for part in entry["clients"]
    ]


def _json(value: object) -> str | None:
    return None if value is None else strict_json.dumps(value, sort_keys=True)


_MAKERS: Final[Mapping[str, Callable[[Entry], list[Row]]]] = {
    "rounds": _rounds,
    "transfers": _transfers,
    "losses": _losses,
    "participants": _participants,
    **nodes.MAKERS,
}
