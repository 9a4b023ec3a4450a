"""``thalweg node``: one node of a graph whose other nodes are on other machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from thalweg import machine
from thalweg.errors import PlanError
from thalweg.job import seats
from thalweg.job.ending import recording
from thalweg.job.graph_result import GraphResult
from thalweg.job.iterating import turns_of
from thalweg.job.node import standing
from thalweg.job.peer import Peer
from thalweg.plan import check_transport
from thalweg.plan.on_graphs import facts_of, gamma_of, graph_line, schedule_of
from thalweg.plan.options import node_options
from thalweg.record import RunRecord
from thalweg.record.nodes import entry
from thalweg.transports import links, pki, registry
from thalweg.ui.progress import iteration_line

if TYPE_CHECKING:
    from thalweg.plan import Plan
    from thalweg.ui.progress import Progress


@dataclass(frozen=True)
class Place:
    """Where a node listens, without ``listen`` as the plan says, and who it is: certificates and key in PEM files."""

    name: str
    listen: str | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    patience: float = 300.0


def take_part(plan: Plan, place: Place, progress: Progress) -> GraphResult:
    """Be a node of a plan's graph until the job is done, and return what it came to: this node's part of it.

    Raises PlanError for a plan that does not say where all nodes are, LinkError if a neighbour is not there after
    ``place.patience`` seconds, CoreError if one refuses this node.
    """
    check_transport(plan, registry.transports())
    schedule, name = schedule_of(plan), place.name
    hosts = _hosts(plan, name)
    listen = place.listen or f"{plan.scheme}://{hosts[name]}"
    trust = links.node_trust(listen, *_identity(place), plan.security.tls)
    progress.note(graph_line(plan, schedule))
    number = plan.members.index(name)
    around = [plan.members[other] for other in schedule.links.neighbours[number]]
    # All nodes must give their chunks the number of one job: it follows from what they must have alike.
    job = int(plan.digest()[:15], 16)
    digests = {"plan": plan.digest(), "graph": schedule.digest()}

    def options(peer: Peer) -> Mapping[str, object]:
        start = {**digests, "start": peer.checksum()}
        return node_options(plan, trust, number=number + 1, job=job, digests=start)

    with seats.Seat() as seat, standing(plan, name, listen, options, progress.note) as here:
        facts = facts_of(plan, schedule, here.node.address, tls="tls" in trust)
        record = RunRecord.create(plan, {"node": name, **facts})
        progress.note(f"listening on {here.node.address}, record: {record.path}")
        with recording(record, progress):
            progress.note(f"waiting for {', '.join(around)}")
            here.meet({other: f"{plan.scheme}://{hosts[other]}" for other in around}, progress.note, place.patience)
            share = seats.share_of(seat, plan.training.threads, progress.note)
            turns = turns_of(schedule, plan.members, name, plan.weights)
            for done in here.iterations(turns, gamma_of(plan, schedule), share):
                row = entry(done.number, {name: done.line(0.0)}, 1)
                record.append(row)
                line = iteration_line(row, plan.job.rounds)
                record.log(line)
                progress.note(line)
                here.tell(progress.note)
            used = {"cpu_seconds": machine.cpu_seconds(), "peak_rss_bytes": machine.peak_rss_bytes()}
            record.table("parties", [{"party": name, **used}])
            record.finish("complete")
    return GraphResult.of(plan, record, {name: used}, {}, None)


def _hosts(plan: Plan, name: str) -> Mapping[str, str]:
    """Return where each node listens. Raises PlanError if the plan does not say, or knows no such node."""
    hosts = plan.hosts.nodes
    if hosts is None:
        raise PlanError("the plan does not say where nodes are", "Give [hosts.nodes]: each node's name = host:port")
    if name not in hosts:
        raise PlanError(f"[hosts.nodes] has no node {name!r}", f"Known: {', '.join(hosts)}")
    return hosts


def _identity(place: Place) -> tuple[str | None, Mapping[str, str] | None]:
    if (place.cert is None) != (place.key is None):
        raise PlanError("a certificate and its key go together", "Give both --cert and --key, or neither")
    authority = None if place.ca is None else pki.read(place.ca)
    if place.cert is None or place.key is None:
        return authority, None
    return authority, {"certificate": pki.read(place.cert), "key": pki.read(place.key)}
