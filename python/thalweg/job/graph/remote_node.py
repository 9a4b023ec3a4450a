"""``thalweg node PLAN --name NAME``: one node of a graph whose other nodes run elsewhere. It writes its own record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from thalweg import machine, trackers
from thalweg.errors import PlanError, RecordError
from thalweg.job.common import core_shares
from thalweg.job.common.failure import recording
from thalweg.job.common.metrics import RoundCounts, exposing
from thalweg.job.common.tracking import tracking
from thalweg.job.graph.iterations import iteration_weights_of
from thalweg.job.graph.node import listening_node
from thalweg.job.graph.peer import Peer
from thalweg.job.graph.result import GraphResult
from thalweg.job.graph.run import open_record
from thalweg.plan import check_transport
from thalweg.plan.on_graphs import facts_of, gamma_of, graph_line, schedule_of
from thalweg.plan.options import CoreOptions, node_options
from thalweg.record import Record
from thalweg.record.nodes import entry
from thalweg.record.of_nodes import Due, start_of
from thalweg.record.rows import party_row
from thalweg.transports import links, pki, registry
from thalweg.ui.progress import iteration_line

if TYPE_CHECKING:
    from thalweg.plan import Plan
    from thalweg.ui.progress import Progress

# How to resume a node. It is in words, because this process does not know the command line that started it.
AGAIN: Final = "the same command with"


@dataclass(frozen=True)
class NodeIdentity:
    """Where a node listens, and its identity: name, and certificates and key in PEM files.

    Without ``listen`` it listens where the plan says.
    """

    name: str
    listen: str | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    timeout: float = 300.0
    # A record of this node to resume.
    resume: Path | None = None


def take_part(plan: Plan, identity: NodeIdentity, progress: Progress) -> GraphResult:
    """Run a node of a plan's graph until the job is done, and return this node's part of the result.

    With ``identity.resume`` the node continues from that record's checkpoint. If its neighbours are in a later
    iteration, it rejoins them like a node that had lost its links. Raises PlanError for a plan that does not say where
    all nodes are, LinkError if a neighbour is missing after ``identity.timeout`` seconds, CoreError if one refuses this
    node.
    """
    check_transport(plan, registry.transports())
    trackers.require(plan.record.track)
    schedule, name = schedule_of(plan), identity.name
    hosts = _hosts(plan, name)
    listen = identity.listen or f"{plan.scheme}://{hosts[name]}"
    trust = links.node_trust(listen, *_identity(identity), plan.security.tls)
    progress.note(graph_line(plan, schedule))
    number = plan.members.index(name)
    around = [plan.members[other] for other in schedule.links.neighbours[number]]
    # All nodes must put the same job number into their chunks, so they derive it from their common plan.
    job = int(plan.digest()[:15], 16)
    digests = {"plan": plan.digest(), "graph": schedule.digest()}

    def options(peer: Peer) -> CoreOptions:
        start = {} if identity.resume is not None else {"start": peer.checksum()}
        return node_options(plan, trust, number=number + 1, job=job, digests={**digests, **start})

    start = None if identity.resume is None else _start(identity.resume, number + 1, plan)
    with (
        core_shares.CoreShare() as share,
        listening_node(plan, name, listen, options, progress.note, start=start) as here,
    ):
        facts = facts_of(plan, schedule, here.node.address, tls=trust.tls is not None)
        record, done = open_record(plan, identity.resume, {"node": name, **facts})
        due = Due(plan.checkpoint_every, plan.job.rounds, done=done)
        progress.note(f"listening on {here.node.address}, record: {record.path}")
        with (
            recording(record, progress, AGAIN),
            exposing(plan.record.metrics, progress.note, clients=lambda: around) as count,
        ):
            record.watch(lambda entry: count(RoundCounts.of_entry(entry)))
            progress.note(f"waiting for {', '.join(around)}")
            weights = iteration_weights_of(schedule, plan.members, name, plan.weights)
            addresses = {other: f"{plan.scheme}://{hosts[other]}" for other in around}
            here.meet(addresses, weights, progress.note, done=done, timeout=identity.timeout)
            threads = core_shares.threads_of(share, plan.training.threads, progress.note)
            with tracking(plan.record.track, record, progress.note):
                for iteration in here.iterations(weights, gamma_of(plan, schedule), threads, done=done):
                    row = entry(iteration.number, {name: iteration.line(0.0).table()}, 1)
                    kept = here.keep(record.path, due, iteration.number)
                    record.append(row)
                    if kept is not None:
                        record.mark(kept)
                    line = iteration_line(row, plan.job.rounds)
                    record.log(line)
                    progress.note(line)
                    here.report_events(progress.note)
            used = machine.usage()
            record.parties([party_row(name, used)])
            record.finish("complete")
    return GraphResult.of(plan, record, {name: used}, {}, None)


def _start(folder: Path, number: int, plan: Plan) -> Path:
    """Return the checkpoint of a node's record. Raises RecordError if there is none, or it is of another node."""
    record = Record(folder)
    if record.manifest.get("node") != plan.members[number - 1]:
        raise RecordError(f"{folder} is not a record of this node", "Name one that this node made")
    done = record.checkpoint_round
    if done is None:
        raise RecordError(f"{folder} has no checkpoint", "Start the node anew; record.checkpoint_every makes them")
    return start_of(folder, number, len(plan.members), done)


def _hosts(plan: Plan, name: str) -> Mapping[str, str]:
    """Return each node's host:port, by name. Raises PlanError if the plan has none, or no node ``name``."""
    hosts = plan.hosts.nodes
    if hosts is None:
        raise PlanError("the plan does not say where nodes are", "Give [hosts.nodes]: each node's name = host:port")
    if name not in hosts:
        raise PlanError(f"[hosts.nodes] has no node {name!r}", f"Known: {', '.join(hosts)}")
    return hosts


def _identity(identity: NodeIdentity) -> tuple[str | None, links.Identity | None]:
    if (identity.cert is None) != (identity.key is None):
        raise PlanError("a certificate and its key go together", "Give both --cert and --key, or neither")
    authority = None if identity.ca is None else pki.read(identity.ca)
    if identity.cert is None or identity.key is None:
        return authority, None
    return authority, links.Identity.read(identity.cert, identity.key)
