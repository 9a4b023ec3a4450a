"""The goodput of updates, from the records of a bench's runs.

The goodput of an update is the number of its bytes that arrived, divided by the time from its first byte to its last at
the server, start-up included. The goodput of a round with several clients is the bytes of all of them, divided by the
time from the first byte of any client to the last byte of any client. So the slowest client decides. The ceiling is the
most that the links carry (``thalweg.network.bound.carried``): each client's link counts like the slowest one, and a
link that all clients share counts too. The emulator loses packets in front of a link's limit, so losses use none of its
rate.

======================  ========================================================================================
``goodput``             of a round, bits a second
``ceiling``             of a round, bits a second; null if a link has no limit
``share``               ``goodput`` / ``ceiling``
``slowest``             goodput of the slowest client's update, bits a second
``jain``                Jain's index of the clients' goodputs: 1 if all are equal, 1/n if one client has all
``missing``             share of the updates' bytes that did not arrive and were not resent
``lost``                share of the clients' sent bytes that were lost on links or in their queues
``queue_drops``         packets that full queues dropped on the way up
``queue_seconds``       mean length of queues on the way up while updates were in flight, in seconds at the
                        link's rate
``queue_seconds_max``   the longest such queue of the whole run
``rivals``              goodput of all rivals together, bits a second, if there were any
``flows``               goodput of each client by name, and of each rival, which ``jain`` then includes
``timeline``            samples of the senders in the first run, if they were watched: see ``senders``
======================  ========================================================================================

All numbers are medians over rounds, and then over runs. ``goodput_by_run`` and ``share_by_run`` have each run's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from experiments import senders
from experiments.measured import Table, middle, rounded, scalars
from thalweg import wire
from thalweg.bench.values import Outcome
from thalweg.network.bound import Stage, carried
from thalweg.network.shape import Shape
from thalweg.record.facts import Facts
from thalweg.record.rows import Link, Transfer
from thalweg.report.numbers import divided
from thalweg.report.source import Run, json_object, read_run

UP: Final = "ab"
# Numbers that are stored for each run too, so that figures can show their spread.
SPREAD: Final = ("goodput", "share")


@dataclass(frozen=True)
class Flow:
    """An update's transfer to the server: received and missing bytes, and the times of its first and last byte."""

    client: str
    received: int
    missing: int
    begin: float
    end: float

    @property
    def rate(self) -> float:
        """Goodput in bits per second."""
        return 8 * self.received / (self.end - self.begin)


def by_cell(runs: Iterable[Outcome], folder: Path) -> dict[int, Table]:
    """Return the numbers of each cell from its complete runs' records, below ``folder``. Raises RecordError."""
    tables_by_cell: dict[int, list[Table]] = defaultdict(list)
    for run in runs:
        if run.status == "complete" and run.record:
            numbers = of_run(read_run(folder / run.record))
            watched = folder / "cells" / f"{Path(run.record).name}{senders.SUFFIX}"
            tables_by_cell[run.cell].append(with_senders(numbers, watched) if watched.is_file() else numbers)
    return {cell: joined(tables) for cell, tables in tables_by_cell.items()}


def with_senders(numbers: Table, file: Path) -> Table:
    """Return a run's numbers, with the samples of its senders."""
    seen = senders.of_file(file)
    rates = {**numbers["flows"], **{name: rounded(rate) for name, rate in seen["rivals"].items()}}
    several = {}
    if seen["rivals"]:
        several = {"jain": rounded(jain(list(rates.values()))), "rivals": rounded(sum(seen["rivals"].values()))}
    return {**numbers, **several, "flows": rates, "timeline": seen["timeline"]}


def joined(tables: Sequence[Table]) -> Table:
    """Return one cell's numbers from those of its runs."""
    names = [name for name in tables[0] if name not in ("flows", "timeline")]
    medians: Table = {name: middle(table[name] for table in tables) for name in names}
    clients = dict.fromkeys(client for table in tables for client in table["flows"])
    medians["flows"] = {client: middle(table["flows"].get(client) for table in tables) for client in clients}
    medians |= {"timeline": tables[0]["timeline"]} if "timeline" in tables[0] else {}
    spread = {f"{name}_by_run": [rounded(table[name]) for table in tables] for name in SPREAD}
    return {**medians, **spread, "by_run": scalars(tables)}


def of_run(run: Run) -> Table:
    """Return the numbers of one run."""
    rounds = list(flows(run.transfers).values())
    alone = [flow for flows in rounds for flow in flows]
    rates = {client: middle(flow.rate for flow in alone if flow.client == client) for client in _clients(alone)}
    at_device = run.plan.network is not None and run.plan.network.limiter == "device"
    ceiling = ceiling_of(used(run.links, rates), _widest(rounds), at_device=at_device)
    goodput = middle(map(together, rounds))
    received, missing = sum(flow.received for flow in alone), sum(flow.missing for flow in alone)
    return {
        "clients": _widest(rounds),
        "goodput": goodput,
        "ceiling": ceiling,
        "share": divided(goodput, ceiling),
        "slowest": middle(min(flow.rate for flow in flows) for flows in rounds),
        "jain": middle(jain([flow.rate for flow in flows]) for flows in rounds),
        "missing": divided(missing, received + missing),
        **_links(run, rounds),
        "flows": rates,
    }


def flows(transfers: Iterable[Transfer]) -> dict[int, list[Flow]]:
    """Return the updates of each round, without those of which no byte arrived."""
    by_round: dict[int, list[Flow]] = defaultdict(list)
    for row in transfers:
        begin, end = row.receive_start, row.receive_end
        if row.direction == "up" and row.bytes and begin is not None and end is not None and end > begin:
            by_round[row.round].append(Flow(row.client, row.bytes, row.missing or 0, begin, end))
    return dict(by_round)


def together(flows: Sequence[Flow]) -> float:
    """Return the goodput of a round in bits a second."""
    window = max(flow.end for flow in flows) - min(flow.begin for flow in flows)
    return 8 * sum(flow.received for flow in flows) / window


def jain(rates: Sequence[float]) -> float:
    """Return Jain's index of fairness (Jain, Chiu and Hawe 1984)."""
    return sum(rates) ** 2 / (len(rates) * sum(rate**2 for rate in rates))


def used(links: Iterable[Link], clients: Container[str]) -> list[Link]:
    """Return the links without those of clients that were not chosen for the round and so send nothing."""
    return [row for row in links if not _own(row) or row.source in clients]


def ceiling_of(links: Iterable[Link], clients: int, *, at_device: bool = False) -> float | None:
    """Return the highest possible goodput of a round with these clients, in bits per second; None without a limit.

    All clients' updates have the same size, so the slowest of their links decides. A link between switch and server
    carries all updates. ``at_device``: the limit is at each client's own device, in front of its link's loss.
    """
    ways = [(row, wire.made(Shape, json_object(row.nominal))) for row in links if row.direction == UP]
    shared = [Stage(shape.rate, shape.lost) for row, shape in ways if not _own(row)]
    behind = [Stage(None, stage.loss) for stage in shared]
    each = [carried([Stage(shape.rate, shape.lost, not at_device), *behind]) for row, shape in ways if _own(row)]
    limits = [rate * clients for rate in each if rate is not None]
    together = carried(shared)
    return min(limits if together is None else [*limits, together], default=None)


def _own(row: Link) -> bool:
    return str(row.source).startswith("client-")


def _links(run: Run, rounds: Sequence[Sequence[Flow]]) -> Table:
    """Return the links' counters of packets to the server, as the links themselves report them."""
    up = [row for row in run.links if row.direction == UP]
    sent = sum(row.bytes_in or 0 for row in up if _own(row))
    arrived = sum(row.bytes_out or 0 for row in up if row.target == "server")
    nominal = {row.link: Facts(json_object(row.nominal)).number("rate") for row in up}
    rates = {link: rate for link, rate in nominal.items() if rate}
    most = [8 * (row.queue_bytes_max or 0) / rates[row.link] for row in up if row.link in rates]
    return {
        "lost": 1 - arrived / sent if sent else None,
        "queue_drops": sum(row.queue_drops or 0 for row in up) if up else None,
        "queue_seconds": max(_waited(run, rounds, rates), default=None),
        "queue_seconds_max": max(most, default=None),
    }


def _waited(run: Run, rounds: Sequence[Sequence[Flow]], rates: Mapping[str, float]) -> list[float]:
    """Return the mean queue of each limited link while updates were under way, in seconds at the link's rate."""
    spans = [(min(flow.begin for flow in flows), max(flow.end for flow in flows)) for flows in rounds]
    queues = []
    for line in run.samples:
        rate = rates.get(line.link) if line.direction == UP else None
        pairs = zip(line.seconds.tolist(), line.queue_bytes.tolist(), strict=True)
        waiting = [held for at, held in pairs if any(begin <= at <= end for begin, end in spans)]
        if rate and waiting:
            queues.append(8 * fmean(waiting) / rate)
    return queues


def _widest(rounds: Iterable[Sequence[Flow]]) -> int:
    return max((len(flows) for flows in rounds), default=0)


def _clients(flows: Iterable[Flow]) -> list[str]:
    return sorted({flow.client for flow in flows}, key=lambda name: (len(name), name))
