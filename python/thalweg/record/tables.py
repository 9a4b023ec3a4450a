"""The tables of a record: their columns, and how a round's journal entry becomes rows.

``journaled`` names the tables that are made from the journal. ``parties`` is written when a run ends; ``links`` and
``queues`` are too, if the run had an emulated network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from thalweg.apps.metrics import checked_usage, evaluated, of_clients
from thalweg.record import nodes, reading
from thalweg.record.columns import Column, Entry, Row, array_of
from thalweg.ui import strict_json
from thalweg.ui.strict_json import number

ROUNDS: Final = (
    Column("round", "uint32", "number of the round, from 1"),
    Column("accuracy", "float64", "of the global model on the test set, 0 to 1 (FedComm section III.C step 7)"),
    Column("loss", "float64", "mean cross-entropy of the global model on the test set"),
    Column(
        "client_accuracy",
        "float64",
        "mean over clients of the accuracy of the model that each trained, on its test data; null if clients do not "
        "evaluate (job.evaluate)",
    ),
    Column("client_loss", "float64", "mean over clients of the loss, likewise"),
    Column("seconds", "float64", "from the begin of the round to its mean, without the evaluation"),
    Column("communication_seconds", "float64", "in which at least one update was under way"),
    Column("compute_seconds", "float64", "that clients trained, their mean"),
    Column(
        "fedcomm_seconds",
        "float64",
        "from when the model had been sent to all to the mean: what FedComm's code takes for a round's time",
    ),
    Column(
        "fedcomm_communication_seconds",
        "float64",
        "fedcomm_seconds less compute_seconds: what FedComm's code reports as communication",
    ),
    Column("evaluation_seconds", "float64", "that the evaluation took"),
    Column("bytes_down", "uint64", "on all links towards clients"),
    Column("bytes_up", "uint64", "on all links from clients"),
    Column("participants", "uint32", "clients whose update counts, whole or in part"),
    Column("expected", "uint32", "clients that were expected"),
    Column("complete", "bool", "whether all expected updates count whole"),
    Column("fold", "string", "JSON object of what the aggregation did"),
    Column(
        "drift",
        "float64",
        "on a graph, by how much mixing moved the mean of all models, as a fraction of that mean's norm; from sketches",
    ),
    Column(
        "disagreement",
        "float64",
        "on a graph, root mean square distance of the models from their mean after mixing, likewise",
    ),
)
TRANSFERS: Final = (
    Column("round", "uint32", "number of the round"),
    Column("client", "string", "the client at one end"),
    Column("direction", "string", "down: from the server, up: to the server"),
    Column("source", "string", "the party that sends: server, or name of the client"),
    Column("target", "string", "the party that receives, likewise"),
    Column("bytes", "uint64", "of the update that arrived"),
    Column("missing", "uint64", "bytes of it that did not come and were not asked for again"),
    Column("repair", "string", "what stood in for them, as in [repair] of the plan; null if nothing was missing"),
    Column("wire_bytes", "uint64", "on the link in that direction meanwhile, headers and repeats included"),
    Column("send_start", "float64", "first byte given to the transport, on the server's clock of the run"),
    Column("send_end", "float64", "last byte given to the transport"),
    Column("receive_start", "float64", "first byte of the update received"),
    Column("receive_end", "float64", "last byte of the update received"),
    Column(
        "retransmissions",
        "uint64",
        "segments (of ltp: chunks) that the sender sent again, counted when the receiver has confirmed it; a count "
        "that comes after the round's end is in the sender's next transfer; null where nobody counts them",
    ),
    Column("congestion_control", "string", "of the sender's connection, as its kernel names it"),
    Column("duplicates", "uint64", "chunks that came more than once"),
    Column("corrupt", "uint64", "chunks that came damaged"),
    Column("copied", "uint64", "bytes of payload copied in user space at the server"),
    Column("records_lost", "uint64", "records that the server could not open, lost or forged; null if not sealed"),
    Column("resumed", "uint32", "times the link broke and only what was missing was sent again"),
    Column("complete", "bool", "whether all of it arrived"),
)
LOSSES: Final = (
    Column("round", "uint32", "number of the round"),
    Column("client", "string", "the client at one end"),
    Column("direction", "string", "as in transfers"),
    Column("tensor", "string", "a tensor of which something did not come and was not asked for again"),
    Column("missing", "uint64", "bytes of it that did not come"),
    Column("share", "float64", "fraction of it that did not come, 0 to 1"),
)
PARTICIPANTS: Final = (
    Column("round", "uint32", "number of the round"),
    Column("client", "string", "name of the client"),
    Column("state", "string", "whole, partial, lost, rejected or late"),
    Column("samples", "uint64", "weight of its update"),
    Column("coverage", "float64", "fraction of its update that came and is in the mean, 0 to 1"),
    Column("reason", "string", "why it is not whole"),
    Column("train_seconds", "float64", "that it trained"),
    Column("accuracy", "float64", "of the model that it trained, on its test data; null if clients do not evaluate"),
    Column("loss", "float64", "of that model, likewise"),
    Column("metrics", "string", "JSON object of what its app reported; NaN, Infinity and -Infinity are strings"),
    Column("usage", "string", "JSON object of what its process used: train_seconds, cpu_seconds, peak_rss_bytes, ..."),
)
PARTIES: Final = (
    Column("party", "string", "server, or name of the client"),
    Column("cpu_seconds", "float64", "that its process used, in user space and in the kernel; null in virtual time"),
    Column("peak_rss_bytes", "uint64", "most memory it had resident"),
    Column("retransmitted_segments", "uint64", "TCP segments its emulated host sent again"),
    Column("receive_buffer_drops", "uint64", "packets its emulated host dropped for want of a receive buffer"),
    Column("limiter_drops", "uint64", "packets that the limiter on its emulated host's device dropped"),
    Column("congestion_control", "string", "of its TCP connections"),
    Column("cpu_quota", "float64", "cores it could use; null without a limit"),
    Column("stress", "string", "JSON object of the load put on it and what that achieved"),
)
LINKS: Final = (
    Column("link", "string", "name of the link"),
    Column("direction", "string", "ab: from a to b, which is client to server on a client's link; ba: back"),
    Column("source", "string", "host or switch that sends"),
    Column("target", "string", "host or switch that receives"),
    Column("nominal", "string", "JSON object of what the direction was to be like when the run began"),
    Column("packets_in", "uint64", "packets of at most the MTU that were sent to it"),
    Column("bytes_in", "uint64", "bytes of IP in them"),
    Column("packets_out", "uint64", "packets that it delivered"),
    Column("bytes_out", "uint64", "bytes of IP in them"),
    Column("lost", "uint64", "packets lost on the link, as its loss says"),
    Column("queue_drops", "uint64", "packets dropped because its queue was full"),
    Column("down_drops", "uint64", "packets dropped because it was down"),
    Column("overflow_drops", "uint64", "packets dropped because the emulation itself had no room"),
    Column("duplicated", "uint64", "packets delivered twice"),
    Column("reordered", "uint64", "packets that skipped the delay"),
    Column("queue_bytes_max", "uint64", "most bytes that waited"),
    Column("delay_p50", "float64", "median of the seconds from its queue's end to delivery"),
    Column("delay_p90", "float64", "90th percentile of them"),
    Column("delay_p99", "float64", "99th percentile of them"),
    Column("delay_max", "float64", "longest of them"),
    Column("lateness_p50", "float64", "median of the seconds by which packets came later than the emulation meant"),
    Column("lateness_p99", "float64", "99th percentile of them"),
    Column("lateness_max", "float64", "longest of them"),
)
QUEUES: Final = (
    Column("seconds", "float64", "when, on the server's clock of the run"),
    Column("link", "string", "name of the link"),
    Column("direction", "string", "as in links"),
    Column("queue_bytes", "uint64", "bytes that waited"),
    Column("queue_packets", "uint64", "packets that waited"),
    Column("bytes_out", "uint64", "bytes delivered so far"),
    Column("packets_out", "uint64", "packets delivered so far"),
    Column("rate", "float64", "bits a second that were set then, 0 while it was down; null without a limit"),
)
TABLES: Final[Mapping[str, tuple[Column, ...]]] = {
    "rounds": ROUNDS,
    "transfers": TRANSFERS,
    "losses": LOSSES,
    "participants": PARTICIPANTS,
    **nodes.TABLES,
    "parties": PARTIES,
    "links": LINKS,
    "queues": QUEUES,
}
# Name of the server among the parties.
SERVER: Final = "server"
# Most rows of a table in memory at a time; also the size of a row group of the file.
GROUP: Final = 2_000
# Tables that can be made from the journal at any time: for a job with a server, and for a job on a graph.
JOURNALED: Final = ("rounds", "transfers", "losses", "participants")
ON_GRAPHS: Final = ("rounds", *nodes.TABLES)


def journaled(*, graph: bool) -> tuple[str, ...]:
    """Return the tables that are made from the journal of a job with a server, or of a job on a graph."""
    return ON_GRAPHS if graph else JOURNALED


def entry(outcome: Mapping[str, Any], evaluation: Mapping[str, Any], evaluation_seconds: float | None) -> Row:
    """Return the journal's entry of a round from the core's outcome and the global model's evaluation.

    Raises MetricsError if ``accuracy`` or ``loss`` is not a number.
    """
    compute = [used["train_seconds"] for used in map(usage_of, outcome["participants"]) if "train_seconds" in used]
    mean = fmean(compute) if compute else None
    window = _fedcomm_seconds(outcome)
    counted = [part for part in outcome["participants"] if part["state"] in ("whole", "partial")]
    figures = evaluated(evaluation)
    return {
        "round": outcome["round"],
        "accuracy": figures.get("accuracy"),
        "loss": figures.get("loss"),
        **dict.fromkeys(("client_accuracy", "client_loss")),
        **of_clients(outcome),
        "seconds": outcome["seconds"],
        "communication_seconds": outcome["communication_seconds"],
        "compute_seconds": mean,
        "fedcomm_seconds": window,
        "fedcomm_communication_seconds": None if mean is None or window is None else window - mean,
        "evaluation_seconds": evaluation_seconds,
        "bytes_down": outcome["bytes_down"],
        "bytes_up": outcome["bytes_up"],
        "participants": len(counted),
        "expected": outcome["expected"],
        "complete": outcome["complete"],
        "fold": outcome.get("fold"),
        "clients": outcome["participants"],
        "transfers": [
            {**ends_of(way), **way, "congestion_control": _congestion(way, outcome)} for way in outcome["transfers"]
        ],
    }


def ends_of(transfer: Mapping[str, Any]) -> dict[str, str | None]:
    """Return ``source`` and ``target`` of a transfer. They follow from its ``direction``, as older records lack them.

    Both are None if the direction is neither down nor up.
    """
    ends = {"down": (SERVER, transfer["client"]), "up": (transfer["client"], SERVER)}
    source, target = ends.get(transfer["direction"], (None, None))
    return {"source": source, "target": target}


def _fedcomm_seconds(outcome: Mapping[str, Any]) -> float | None:
    """Return the seconds from when the transport got the model's last byte to the mean of the round.

    FedComm's server measures the time of train() and aggregate(). It has sent the model to all clients before that: the
    time starts when its last send call has returned. So it includes the transfer of the bytes that were still in
    flight.
    """
    sent = [way.get("send_end") for way in outcome["transfers"] if way["direction"] == "down"]
    known = [float(end) for end in sent if end is not None]
    if not known or outcome.get("start") is None:
        return None
    return max(0.0, float(outcome["start"]) + float(outcome["seconds"]) - max(known))


def _congestion(transfer: Mapping[str, Any], outcome: Mapping[str, Any]) -> str | None:
    """Return the congestion control of a transfer's sender. The server knows its own; a client reports it."""
    if transfer["direction"] == "down":
        own: str | None = outcome.get("congestion_control")
        return own
    said = (usage_of(part) for part in outcome["participants"] if part["client"] == transfer["client"])
    return next((usage.get("congestion_control") for usage in said), None)


def usage_of(participant: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the resource usage of a participant's process.

    Older records lack ``usage`` and have it among the metrics.
    """
    if "usage" in participant:
        usage: Mapping[str, Any] = participant["usage"]
        return usage
    return checked_usage(participant.get("metrics"))[0]


def restored(entry: Row) -> Row:
    """Return a journal's entry in which the strings for numbers that are not finite are numbers again."""
    for column in ROUNDS:
        if column.type == "float64" and column.name in entry:
            entry[column.name] = number(entry[column.name])
    return entry


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
    """Write a table to ``folder`` batch by batch. The file appears atomically. Raises OSError."""
    with _writing(folder, name) as write:
        for batch in batches:
            write(batch)


@contextmanager
def _writing(folder: Path, name: str) -> Iterator[Callable[[Iterable[Row]], None]]:
    """Give a function that adds rows to a table; at most ``GROUP`` rows wait in memory."""
    import pyarrow.parquet

    part, columns = folder / f".{name}.parquet.part", schema(name)
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
        part.replace(folder / f"{name}.parquet")
    finally:
        part.unlink(missing_ok=True)


def read_table(folder: Path, name: str) -> list[Row]:
    """Return the rows of a table in the record; an empty list if the run wrote none. Raises OSError."""
    path = folder / f"{name}.parquet"
    found: list[Row] = reading.table(path).to_pylist() if path.exists() else []
    return found


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
    return [{**ends_of(transfer), **transfer, "round": entry["round"]} for transfer in entry["transfers"]]


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
