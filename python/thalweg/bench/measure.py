"""Computes the numbers of one run from its record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from thalweg.bench.values import ByKind, RoundTimes, RunNumbers
from thalweg.record.rows import Party
from thalweg.report.numbers import bound_of, divided, last, payload, retransmissions, rounds, total, transport
from thalweg.report.senders import congestion, default_congestion
from thalweg.report.source import Run, read_run
from thalweg.report.values import RoundNumbers

SERVER: Final = "server"
Number = TypeVar("Number", int, float)


def measure(path: Path) -> RunNumbers:
    """Return the numbers of the record in folder ``path``. Raises RecordError or PlanError if it cannot be read."""
    return numbers(read_run(path))


def numbers(run: Run) -> RunNumbers:
    """Return the numbers of a run's rounds, bytes, CPU time and memory, from its record; None if one is unknown."""
    each = rounds(run)
    moved = payload(run.transfers)
    wire, counted = _wire(run, each)
    bound = bound_of(run)
    return RunNumbers(
        rounds=[
            RoundTimes(
                round=row.round,
                seconds=row.seconds,
                communication_seconds=row.communication_seconds,
                fedcomm_communication_seconds=row.fedcomm_communication_seconds,
                bound_seconds=row.bound_seconds,
                complete=row.complete,
                accuracy=row.accuracy,
            )
            for row in each
        ],
        accuracy=last(each, lambda row: row.accuracy),
        update_bytes=None if moved is None else moved[0] + moved[1],
        wire_bytes=wire,
        wire_counted=counted,
        wire_ratio=divided(wire, None if moved is None else moved[0] + moved[1]),
        retransmissions=retransmissions(run),
        cpu_seconds=_by_kind(run, lambda row: row.cpu_seconds, sum),
        peak_rss_bytes=_by_kind(run, lambda row: row.peak_rss_bytes, max),
        transport=transport(run),
        congestion_control=congestion(run),
        unasked_congestion_control=default_congestion(run),
        emulation=run.emulation.partition(":")[0],
        bound_source=None if bound is None else bound.source,
    )


def _wire(run: Run, each: Sequence[RoundNumbers]) -> tuple[int | None, str | None]:
    """Return the bytes that crossed clients' links in both directions, and who counted them.

    On an emulated network these are the bytes of IP packets, with all headers, retransmissions and control messages.
    Else the transport counts them.
    """
    names = _clients(run)
    crossed = [row.bytes_in for row in run.links if row.source in names or row.target in names]
    if crossed:
        return total(crossed), "ip"
    count = total(count for row in each for count in (row.bytes_down, row.bytes_up))  # another system counts nothing
    return count, None if count is None else "transport"


def _clients(run: Run) -> frozenset[str]:
    return frozenset(run.plan.members)


def _by_kind(
    run: Run, of: Callable[[Party], Number | None], join: Callable[[Sequence[Number]], Number]
) -> ByKind[Number]:
    """Return a number of the server, of all clients together, and of others (such as a broker) together."""
    names = _clients(run)
    server: list[Number] = []
    clients: list[Number] = []
    others: list[Number] = []
    for row in run.parties:
        kind = server if row.party == SERVER else clients if row.party in names else others
        value = of(row)
        kind += [] if value is None else [value]
    return ByKind(*(join(values) if values else None for values in (server, clients, others)))
