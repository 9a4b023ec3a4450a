"""Runs Flower apps: ``thalweg flower run`` on this machine (``run``), or over several (``serve`` and ``join``).

The ServerApp runs in this process and the nodes run in others, of which each may serve several. With a transport that
works only inside one process the nodes are threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from thalweg import _core, flower, machine, trackers, wire
from thalweg.apps import FLOWER
from thalweg.errors import PlanError, RecordError
from thalweg.flower.app import AppFolder, read
from thalweg.flower.hosting import FlowerResult, Hosting, recorded
from thalweg.flower.process_order import NodeSettings, ProcessOrder
from thalweg.job.common import core_shares
from thalweg.job.common.broker import RunBroker, run_broker
from thalweg.job.common.farewell import farewell
from thalweg.job.common.fleet import END_SECONDS, Fleet, client_threads
from thalweg.job.common.joining import joining
from thalweg.job.common.session import Session, session
from thalweg.job.star.remote import Membership, entrance
from thalweg.machine import grace
from thalweg.plan import check_transport
from thalweg.plan.options import client_options, task_options
from thalweg.record.rows import party_row
from thalweg.tensors.watching import Note
from thalweg.transports import links, registry
from thalweg.transports.links import Trust
from thalweg.ui.phrases import number_of

if TYPE_CHECKING:
    from thalweg.plan import Plan
    from thalweg.tasks import TaskServer
    from thalweg.ui.progress import Progress

PROGRAM: Final = "thalweg.flower.worker"
# Packages that are imported once for all processes if an app depends on them. They start no threads when imported.
LARGE: Final = frozenset({"torch", "torchvision"})


@dataclass(frozen=True)
class Preview:
    """What a run of a Flower app would do, as ``--dry-run --json`` prints it; None where it is not known."""

    app: str
    clients: int
    processes: int
    transport: str
    fold: str
    rounds: int | None
    update_bytes: int | None
    estimate_seconds: float | None


@dataclass(frozen=True)
class NodeResult:
    """What a node did until its run was over, as ``thalweg flower client --json`` prints it."""

    name: str
    url: str
    messages: int
    peak_rss_bytes: int | None


def plan_of(folder: Path, overrides: Mapping[str, object], run_config: Sequence[str] = ()) -> Plan:
    """Return the plan of a Flower app: the app's own settings, with those of the command line over them.

    Raises PlanError if the folder is not a Flower app, or has no such setting.
    """
    from thalweg.flower import app
    from thalweg.plan import Plan

    app_folder = read(folder)
    values = {key: value for text in run_config for key, value in app.pairs(text, "--run-config").items()}
    app_folder.run_config(values)
    clients = overrides.get("job.clients") or app_folder.nodes
    if clients is None:
        raise PlanError(f"{folder} does not say how many nodes its federation has", "Say it: --clients 4")
    table = {"job": {"clients": clients}, "app": {"object": f"{FLOWER}{folder}", "options": values or None}}
    return Plan.of(table, "the Flower app").merge(overrides)


def is_app(plan: Plan) -> bool:
    """Return whether a plan's app is a Flower app."""
    return plan.app is not None and plan.app.object.startswith(FLOWER)


def folder_of(plan: Plan) -> Path:
    """Return the folder of a plan's Flower app. Raises PlanError if it has none."""
    if plan.app is None or not is_app(plan):
        raise PlanError(f"{plan.label} is no Flower app", f"Write app = '{FLOWER}APP_DIR'")
    return Path(plan.app.object.removeprefix(FLOWER))


def check(plan: Plan) -> None:
    """Raise PlanError if a plan's Flower app does not exist, or lacks a configuration key that the plan sets."""
    app = read(folder_of(plan))
    app.run_config({} if plan.app is None else plan.app.options or {})


def run(plan: Plan, progress: Progress) -> FlowerResult:
    """Run a plan's Flower app on this machine and return its result.

    Raises PlanError, LabError or BrokerError before a node is started; AppError if the ServerApp cannot be imported or
    raises; RoundError, RecordError, LabError or CoreError if the run cannot continue. All processes have ended when it
    returns or raises.
    """
    flower.require()
    app = read(folder_of(plan))
    check_transport(plan, registry.transports())
    trackers.require(plan.record.track)
    names = [f"client-{number}" for number in range(1, plan.job.clients + 1)]
    in_process = registry.can(plan.scheme).in_process
    shares = _shares(plan, names)
    server_trust, client_trust = links.local_trust(plan.security, plan.url)
    with (
        session(plan, names, progress.note) as network,
        run_broker(plan, network, server_trust, progress.note) as broker,
        _listening(plan, broker.url, broker.trusting(server_trust), network) as server,
        recorded(plan, server, network.facts(), progress, tls=server_trust.tls is not None) as record,
    ):
        host = Hosting(plan, app, server, record, progress, look=network.check)
        modules = ["thalweg.flower.client", *sorted(LARGE & app.packages)]
        fleet = Fleet(
            record.log_path, host.process_ended, in_process=in_process, work=_work, program=PROGRAM, modules=modules
        )
        host.nodes_of = {process: list(nodes) for process, nodes in shares.items()}
        try:
            progress.note(f"starting {len(names)} nodes in {len(shares)} processes")
            fleet.start(list(shares), _Orders(plan, app, server, network, broker.trusting(client_trust), shares, names))
            host.load()  # imported while the nodes' processes start
            host.wait(lambda: _look(fleet, network))
            network.begin(record)
            host.serve()
        finally:
            _end(host, fleet, network, broker)
        host.check()
        peak = machine.peak_rss_bytes()
    return host.result(peak, fleet.peaks(), network)


def preview(plan: Plan) -> Preview:
    """Describe a run of a plan's Flower app without running it, with a lower bound of its messages' seconds on links.

    The ServerApp runs until it sends its first message. Raises PlanError, and AppError if it cannot be imported.
    """
    from thalweg.flower.dry import size_of
    from thalweg.plan.least import has_known_links, least_seconds

    flower.require()
    app_folder = read(folder_of(plan))
    check_transport(plan, registry.transports())
    names = [f"client-{number}" for number in range(1, plan.job.clients + 1)]
    processes = len(_shares(plan, names))
    app = plan.app
    size = size_of(app_folder, {} if app is None else app.options or {}, plan.job.clients, plan.job.seed)
    known = size.update_bytes is not None and size.rounds is not None and has_known_links(plan)
    return Preview(
        app=str(app_folder.path),
        clients=plan.job.clients,
        processes=processes,
        transport=plan.url,
        fold="auto" if app is None else app.fold or "auto",
        rounds=size.rounds,
        update_bytes=size.update_bytes,
        estimate_seconds=least_seconds(plan, size.update_bytes, size.rounds) if known else None,
    )


def serve(plan: Plan, url: str, progress: Progress) -> FlowerResult:
    """Run a plan's ServerApp at ``url``, for nodes that are started elsewhere, and return its result.

    Raises LinkError if other machines can reach ``url`` and the plan does not say who may join; else what ``run``
    raises.
    """
    flower.require()
    app = read(folder_of(plan))
    check_transport(plan, registry.transports())
    trackers.require(plan.record.track)
    trust = links.server_trust(plan.security, url)
    cpu = machine.cpu_seconds()
    with (
        _listening(plan, url, trust, None) as server,
        recorded(plan, server, {}, progress, tls=trust.tls is not None) as record,
    ):
        host = Hosting(plan, app, server, record, progress)
        guarded = "encrypted" if trust.tls else "not encrypted" if trust.issuer else "open to this machine"
        progress.note(f"listening on {server.address} ({guarded})")
        host.load()
        progress.note(f"waiting for {number_of(plan.job.clients, 'node')}")
        host.wait(lambda: None)
        host.serve()
        host.grid.close()
        peak = machine.peak_rss_bytes()
        names = host.attendance.names()
        own = machine.usage(cpu)
        parties = [("server", own), *((name, host.attendance.usage_of(name)) for name in names)]
        record.parties([party_row(name, used) for name, used in parties])
        host.check()
    peaks = [host.attendance.peak_of(name) for name in names]
    return host.result(peak, peaks)


def join(
    membership: Membership, folder: Path, node_config: Sequence[str], threads: int | None, note: Note
) -> NodeResult:
    """Serve as a node of a Flower app until the run is over.

    Raises PlanError for wrong settings on this side; LinkError or CoreError if the server cannot be reached or refuses
    the node.
    """
    flower.require()
    from thalweg.flower import app
    from thalweg.flower.client import Apps, Node
    from thalweg.tasks import TaskClient

    app_folder = read(folder)
    config = {key: value for text in node_config for key, value in app.pairs(text, "--node-config").items()}
    url, name, options = entrance(membership)
    with core_shares.CoreShare() as share:
        # Libraries such as PyTorch read this when the app imports them, which it does with its first message.
        os.environ.setdefault(core_shares.CHOSEN, str(threads or share.threads()))
        core = _core.TaskClient(url, name, wire.encode(options))
        with farewell(core, "the node ends"):
            with joining(url, options, lambda text: note(f"{name}: {text}")):
                core.join()
            apps = Apps(app_folder.load_client, folder=app_folder.path.resolve())
            done = Node(name, apps, config, note).serve(TaskClient.over(core, name))
    return NodeResult(name, url, done, machine.peak_rss_bytes())


@contextmanager
def _listening(plan: Plan, url: str, trust: Trust, network: Session | None) -> Iterator[TaskServer]:
    from thalweg.tasks import TaskServer

    budgets = {} if plan.app is None else {"memory": plan.app.memory, "max_result": plan.app.largest_reply}
    options = wire.encode(
        task_options(plan, trust, None if network is None else network.layers)
        | {name: size for name, size in budgets.items() if size is not None}
    )

    def listen() -> _core.TaskServer:
        return _core.TaskServer(url, options)

    with TaskServer.over(listen() if network is None else network.listen(listen)) as server:
        yield server


@dataclass(frozen=True)
class _Orders:
    """Makes the order of each process: what it reads when it starts. ``shares`` gives each process its nodes."""

    plan: Plan
    app: AppFolder
    server: TaskServer
    network: Session
    trust: Trust
    shares: Mapping[str, Sequence[str]]
    names: Sequence[str]

    def of(self, name: str, number: int) -> ProcessOrder:
        plan = self.plan
        return ProcessOrder(
            name=name,
            threads=client_threads(plan.training.threads, len(self.shares)),
            place=self.network.place(name) if name in self.names else None,
            url=self.server.address,
            app=str(self.app.path.resolve()),
            nodes=[self._node(node) for node in self.shares[name]],
        )

    def _node(self, name: str) -> NodeSettings:
        at, plan = self.names.index(name), self.plan
        options = client_options(
            plan,
            self.trust,
            seed=plan.job.seed + at + 1,
            emulate=self.network.layers,
            congestion=plan.transport.congestion_of(at),
        )
        config = {"partition-id": at, "num-partitions": len(self.names)}
        return NodeSettings(name, options, config)


def _shares(plan: Plan, names: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return which nodes each process serves. Raises PlanError if the plan asks for too few processes."""
    alone = (plan.network is not None and plan.network.emulator != "none") or plan.stress is not None
    most = len(names) if alone else min(len(names), 2 * machine.cores())
    processes = None if plan.app is None else plan.app.processes
    if alone and processes is not None and processes < len(names):
        raise PlanError(
            "each node of an emulated network, or under stress, is a process of its own",
            f"Remove --processes, or give {len(names)}",
        )
    count = min(processes or most, len(names))
    if count == len(names):
        return {name: [name] for name in names}
    return {f"process-{number}": names[number - 1 :: count] for number in range(1, count + 1)}


def _work(order: ProcessOrder, note: Callable[[str], None]) -> None:
    from thalweg.flower.worker import serve

    serve(order, note)


def _look(fleet: Fleet[ProcessOrder], network: Session) -> None:
    fleet.check()
    network.check()


def _end(host: Hosting, fleet: Fleet[ProcessOrder], network: Session, broker: RunBroker) -> None:
    """End all processes, and record their reports and the network's tables.

    A RecordError becomes a note, so that it cannot replace the error that ended the run.
    """
    network.end_stress()
    fleet.release()
    if grace.is_hurried():
        fleet.stop()
    host.grid.close()
    host.server.close("the job is over")
    fleet.stop(grace=0.0 if network.has_failed else END_SECONDS)
    try:
        host.record.note(**broker.facts())
        network.finish(host.record, {**fleet.reports(), **broker.reports()})
    except RecordError as error:
        host.progress.note(f"the record is not complete: {error}")
