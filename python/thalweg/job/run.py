"""``thalweg run``: runs a whole job on this machine.

The server runs in this process and each client in a process of its own. A transport that works only inside one process
has its clients in threads. A job on a graph has no server: ``thalweg.job.graph.run`` runs it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from thalweg import _core, apps, machine
from thalweg.apps.received_config import ReceivedConfig
from thalweg.errors import PlanError, RecordError
from thalweg.job.common.broker import RunBroker, run_broker
from thalweg.job.common.fleet import (
    END_SECONDS,
    ClientOrder,
    Fleet,
    ForkServers,
    Orders,
    client_threads,
    prepared,
    take_orders,
)
from thalweg.job.common.parties import NamedApp, modules_of, round_config
from thalweg.job.common.session import Session, session
from thalweg.job.star.host import Host, Result, hosting
from thalweg.job.tree import engines
from thalweg.job.tree.local_nodes import TreeNodes
from thalweg.job.tree.root import Tree
from thalweg.machine import Usage, grace
from thalweg.plan import auto_transport, check_transport, on_trees
from thalweg.plan.options import client_options
from thalweg.transports import links, registry
from thalweg.transports.links import Trust
from thalweg.ui.phrases import number_of

if TYPE_CHECKING:
    from thalweg.job.graph.result import GraphResult
    from thalweg.plan import Plan
    from thalweg.ui.progress import Progress

# The folder of a record in which clients keep what compression has left out of their updates.
RESIDUALS: Final = "residuals"


def run(plan: Plan, progress: Progress, *, resume: Path | None = None) -> Result | GraphResult:
    """Run a job on this machine and return its result. ``thalweg.job.graph.run`` runs a job that has a graph.

    With ``resume`` the job continues from that record's checkpoint. Raises PlanError, DataError, ModelError, LabError
    or BrokerError before a client is started; LabError if an emulated network fails; RecordError, RoundError or
    CoreError if the job cannot continue. All clients have ended when it returns or raises.
    """
    if plan.app is not None and plan.app.object.startswith(apps.FLOWER):
        folder = plan.app.object.removeprefix(apps.FLOWER)
        raise PlanError(f"{plan.app.object} is a Flower app", f"Run it with: thalweg flower run {folder}")
    plan, reason = auto_transport.with_transport(plan)
    if plan.job.graph is not None:
        from thalweg.job.graph import run as on_graph

        return on_graph.run(plan, progress, resume=resume, transport_reason=reason)
    names = plan.members
    in_process = registry.can(plan.scheme).in_process
    check_transport(plan, registry.transports())
    engines.require(plan)
    # The plan's URL decides on TLS, not the server's address in the lab: a lab is as private as loopback.
    server_trust, client_trust = links.local_trust(plan.security, on_trees.reached(plan))
    with (
        session(plan, names, progress.note) as network,
        run_broker(plan, network, server_trust, progress.note) as broker,
        _prepared(plan, in_process=in_process) as servers,
        hosting(plan, broker.url, broker.trusting(server_trust), progress, resume, session=network) as host,
    ):
        progress.note(f"record: {host.record.path}")
        if reason is not None:
            host.record.note(transport_reason=reason)
            progress.note(f"transport: {plan.scheme}, because {reason}")
        nodes = TreeNodes(plan, host.server, network, host.record, progress) if isinstance(host.server, Tree) else None
        log = host.record.log_path
        fleet = Fleet(
            log,
            lambda name, why: _lost(host, name, why),
            in_process=in_process,
            work=take_orders,
            modules=modules_of(plan),
            on_training=progress.trained,
            servers=servers,
        )
        try:
            if nodes is not None:
                nodes.start(server_trust, client_trust)
            progress.note(f"starting {number_of(len(names), 'client')}")
            fleet.start(
                names, _orders(host, network, broker.trusting(client_trust), names, nodes, in_process=in_process)
            )
            spare = _spare(plan)
            host.wait(lambda: _look(fleet, network, spare), fleet.lost)
            host.serve(lambda: names)
        finally:
            _end(host, fleet, network, broker, nodes, in_process=in_process)
        # Measured before `hosting` writes the record's tables, so that the memory of pyarrow does not count.
        server_peak = machine.peak_rss_bytes()
    return replace(host.result(server_peak, _peaks(host, fleet, names)), transport_reason=reason)


def _prepared(plan: Plan, *, in_process: bool) -> AbstractContextManager[ForkServers | None]:
    """Let the clients' process import PyTorch while this one does. Which modules an app needs is not known yet."""
    modules = [] if in_process or plan.app is not None else modules_of(plan)
    if not modules:
        return nullcontext()
    return prepared(modules, client_threads(plan.training.threads, plan.job.clients))


def _spare(plan: Plan) -> int:
    """Return how many clients may be missing when the first round begins."""
    job = plan.job
    return 0 if job.enough is None or job.choose is not None or on_trees.has_nodes(plan) else job.clients - job.enough


def _look(fleet: Fleet[ClientOrder], network: Session, spare: int) -> None:
    if len(fleet.lost()) > spare:
        fleet.check()
    network.check()


def _end(
    host: Host,
    fleet: Fleet[ClientOrder],
    network: Session,
    broker: RunBroker,
    nodes: TreeNodes | None,
    *,
    in_process: bool,
) -> None:
    """End all clients, and record their reports and the network's tables.

    A RecordError becomes a note, so that it cannot replace the error that ended the job.
    """
    network.end_stress()
    fleet.release()
    if nodes is not None:
        nodes.release()
    if grace.is_hurried():
        fleet.stop()  # end the clients first: otherwise the server's close waits for their goodbyes
    host.server.close("the job is over")
    if nodes is not None:
        fleet.end(nodes.end_cut_off())
    # On a failed network clients do not learn that the job is over, so they get no time to end by themselves.
    fleet.stop(grace=0.0 if network.has_failed else END_SECONDS)
    if nodes is not None:
        nodes.stop(grace=0.0 if network.has_failed else END_SECONDS)
    clients = {name: host.attendance.usage_of(name) for name in network.names if not in_process}
    reports: dict[str, Usage] = {**clients, **fleet.reports(), **broker.reports()}
    try:
        host.record.note(**broker.facts())
        network.finish(host.record, {**reports, **({} if nodes is None else nodes.reports())})
    except RecordError as error:
        host.progress.note(f"the record is not complete: {error}")


def _orders(
    host: Host, network: Session, trust: Trust, names: list[str], nodes: TreeNodes | None, *, in_process: bool
) -> Orders:
    plan = host.plan
    threads = None if in_process or plan.is_payload else client_threads(plan.training.threads, plan.job.clients)
    return Orders(
        url=host.server.address,
        options=client_options(plan, trust, seed=plan.job.seed, emulate=network.layers) | engines.client_options(plan),
        config=ReceivedConfig(round_config(plan, host.first, names).table()),
        data_root=plan.data.root,
        threads=threads,
        seed=plan.job.seed,
        places={name: network.place(name) for name in names},
        congestion=_dealt(plan, names),
        app=None if plan.app is None else NamedApp(plan.app.object, plan.app.options),
        tensors=plan.model.tensors,
        shows_training=host.progress.shows_training,
        urls={} if nodes is None else nodes.addresses,
        residuals=host.record.path / RESIDUALS if plan.compression.scheme is not None else None,
    )


def _dealt(plan: Plan, names: list[str]) -> dict[str, str | None]:
    chosen = plan.transport
    return {name: chosen.congestion_of(at) for at, name in enumerate(names)} if chosen.client_congestion else {}


def _lost(host: Host, name: str, why: str) -> None:
    host.progress.note(f"{name} is gone: {why}")
    with suppress(_core.CoreError, RecordError):  # the job may be ending at the same time
        host.server.forget(name, why)
        host.record.log(f"{name} is gone: {why}")


def _peaks(host: Host, fleet: Fleet[ClientOrder], names: list[str]) -> list[int | None] | None:
    """Return each client's peak memory in bytes; None if the clients share the server's process.

    The number is from the client's final report. A killed client has no such report: then the number is the largest
    that the client reported with an update.
    """
    peaks = fleet.peaks()
    if peaks is None:
        return None
    return [own or host.attendance.peak_of(name) for own, name in zip(peaks, names, strict=True)]
