"""Runs jobs on several machines: ``thalweg server`` (``serve_job``) and ``thalweg client`` (``join_job``)."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thalweg import _core, apps, machine, wire
from thalweg.errors import PlanError
from thalweg.job.common import core_shares
from thalweg.job.common.farewell import farewell
from thalweg.job.common.joining import joining
from thalweg.job.common.parties import PartyBuilder
from thalweg.job.star.host import Result, hosting
from thalweg.job.star.participant import Submission, take_part
from thalweg.job.star.roster import Roster
from thalweg.plan import on_trees
from thalweg.plan.options import CoreOptions, of_both_ends
from thalweg.record.rows import party_row
from thalweg.sections.trees import TreeSection
from thalweg.tensors.watching import Note
from thalweg.transports import links, pki, registry
from thalweg.ui.phrases import number_of
from thalweg.wire import Table

if TYPE_CHECKING:
    from thalweg.plan import Plan
    from thalweg.ui.progress import Progress


def listen_url(plan: Plan) -> str:
    """Return the URL at which a server of ``plan`` listens: the host of hosts.server if given, else transport.url."""
    return plan.url if plan.hosts.server is None else f"{plan.scheme}://{plan.hosts.server}"


def serve_job(plan: Plan, url: str, progress: Progress, *, resume: Path | None = None) -> Result:
    """Serve a job at ``url`` to clients that are started elsewhere, and return its result.

    Raises what ``host.hosting`` raises; PlanError for settings that only local jobs have; LinkError if other machines
    can reach ``url`` and the plan does not say who may join.
    """
    refused = [name for name in ("network", "stress") if getattr(plan, name) is not None]
    if refused:
        raise PlanError(
            f"[{refused[0]}] is only for jobs on one machine, which make the links and start the clients",
            f"Start it with `thalweg run`, or remove [{refused[0]}]",
        )
    if plan.job.graph is not None:
        raise PlanError(
            "a job on a graph has no server",
            "Start `thalweg node PLAN --name NAME` on each machine, or remove job.graph",
        )
    if on_trees.has_nodes(plan) and (plan.tree or TreeSection()).top != "dedicated":
        raise PlanError(
            "`thalweg server` cannot use a node as top: all other nodes would have to reach it",
            "Take tree.top = 'dedicated'",
        )
    if plan.nodes is not None and plan.nodes.engine != "local":
        raise PlanError(
            "`thalweg server` starts no nodes; each is started on its own machine",
            "Start `thalweg node URL --parent URL` on each machine, and remove nodes.engine",
        )
    if on_trees.has_nodes(plan) and on_trees.grouped(plan):
        raise PlanError(
            "nodes that connect to `thalweg server` bring their own clients, so groups cannot be assigned to them",
            "Remove tree.tag and nodes.groups; give each client the address of its group's node",
        )
    if plan.nodes is not None and plan.nodes.middle:
        raise PlanError(
            "`thalweg server` starts no nodes, and nodes.middle is for those that a run starts",
            "Remove nodes.middle; start each middle node with `thalweg node URL --parent URL --nodes NUMBER`",
        )
    trust = links.server_trust(plan.security, url)
    cpu = machine.cpu_seconds()
    with hosting(plan, url, trust, progress, resume, command="thalweg server") as host:
        address = host.server.address
        guarded = "encrypted" if trust.tls else "not encrypted" if trust.issuer else "open to this machine"
        progress.note(f"listening on {address} ({guarded}), record: {host.record.path}")
        if on_trees.has_nodes(plan) and plan.nodes is not None:
            progress.note(f"waiting for {number_of(plan.nodes.count, 'node')}")
        progress.note(f"waiting for {number_of(plan.job.clients, 'client')}{_expected(plan)}")
        host.wait(lambda: None)
        roster = Roster(plan.job.clients, list(plan.hosts.clients or host.previous_clients()))
        host.serve(lambda: roster.update(host.connected()))
        peak = machine.peak_rss_bytes()
        names = roster.names
        own = machine.usage(cpu)
        parties = [("server", own), *((name, host.attendance.usage_of(name)) for name in names)]
        host.record.parties([party_row(name, used) for name, used in parties])
    return host.result(peak, [host.attendance.peak_of(name) for name in names])


@dataclass(frozen=True)
class Membership:
    """A client's settings for joining a job. ``target`` is the server's URL or a plan file; key files are PEM."""

    target: str
    name: str | None
    token_file: Path | None
    ca: Path | None
    cert: Path | None
    key: Path | None
    tls: str
    congestion: str | None
    login_file: Path | None
    own: Table
    timeout: float
    outage: float = 0.0


@dataclass(frozen=True)
class MemberResult:
    """What a member of a job has done. ``rounds``: a client's submissions, or the number of rounds of a tree's node."""

    name: str
    url: str | None
    rounds: Sequence[Submission] | int
    peak_rss_bytes: int | None


def join_job(
    membership: Membership,
    app: str | None,
    data_root: str | None,
    threads: int | None,
    note: Note,
    *,
    tensors: Sequence[str] | None = None,
) -> MemberResult:
    """Take part in a job until it is done.

    ``app`` is module:object or file.py:object. Without it the plan names the app, or else the server. ``tensors`` are
    patterns of the tensors that this client sends; they override those of plan and app. The client trains with
    ``threads`` threads; without that number, with its share of the machine's cores
    (``thalweg.job.common.core_shares``). Raises PlanError for what is wrong on this side, LinkError or CoreError if the
    server cannot be reached or does not let the client in.
    """
    plan = None if "://" in membership.target else _plan(membership.target)
    url, name, options = entrance(membership, plan)
    own = _app(app, plan)
    maker = PartyBuilder(
        name,
        data_root=data_root,
        threads=None,
        app=own,
        tensors=tensors or (None if plan is None else plan.model.tensors),
        note=note,
    )
    # Made before the client joins, so that all clients have their core shares when the first round begins.
    with core_shares.CoreShare() as share:
        arena = None if own is None else maker.bind(0 if plan is None else plan.job.seed, shared=registry.lends(url))
        client = _core.Client(url, name, wire.encode(options), arena)
        made = core_shares.limited(maker, share, threads, note)
        with farewell(client, "the client ends"):
            rounds = take_part(client, made, note, joining(url, options, lambda text: note(f"{name}: {text}")))
    return MemberResult(name, url, rounds, machine.peak_rss_bytes())


def entrance(membership: Membership, plan: Plan | None = None) -> tuple[str, str, CoreOptions]:
    """Return the server's URL, the client's name, and the core's options of the client.

    ``plan`` is the plan that the membership's target names, if it names one. Raises PlanError, LinkError.
    """
    url = membership.target if plan is None else listen_url(plan)
    token_file, layers = membership.token_file or _token_file(plan), {} if plan is None else of_both_ends(plan)
    token = None if token_file is None else pki.read_token(token_file)
    name = membership.name or (token.name if token else socket.gethostname())
    return url, name, {**_options(membership, url, token), "layers": layers}


def _expected(plan: Plan) -> str:
    hosts = plan.hosts.clients
    return "" if hosts is None else ": " + ", ".join(f"{name} ({host})" for name, host in hosts.items())


def _plan(path: str) -> Plan:
    """Return the plan in a file. Raises PlanError if it does not say where the server is."""
    from thalweg.plan import Plan

    if (guess := registry.meant(path)) and not Path(path).exists():
        raise PlanError(f"{path} is neither a URL nor a plan", f"{guess}A URL names the transport")
    plan = Plan.load(Path(path))
    if plan.hosts.server is None:
        raise PlanError(f"{path} does not say where the server is", "Give hosts.server, or the URL of the server")
    return plan


def _token_file(plan: Plan | None) -> Path | None:
    named = None if plan is None else plan.security.token_file
    return None if named is None else Path(named)


def _app(named: str | None, plan: Plan | None) -> Any:
    """Return the app that the command line names, or else the plan's app; None if neither names an app."""
    planned = None if plan is None else plan.app
    if named is None and planned is None:
        return None
    return apps.load(named or planned.object, None if planned is None else planned.options)  # type: ignore[union-attr]


def _options(membership: Membership, url: str, token: pki.Token | None) -> CoreOptions:
    if membership.tls not in ("auto", "on", "off"):
        raise PlanError(f"--tls is {membership.tls!r}", "Give auto, on or off")
    if (membership.cert is None) != (membership.key is None):
        raise PlanError("a certificate and its key go together", "Give both --cert and --key, or neither")
    identity = None
    if membership.cert is not None and membership.key is not None:
        identity = links.Identity.read(membership.cert, membership.key)
    authority = None if membership.ca is None else pki.read(membership.ca)
    trust = links.remote_trust(url, token, authority, identity, membership.tls)
    transport = {
        "tls": trust.tls,
        "congestion": membership.congestion,
        "login": links.login(membership.login_file),
        "own": membership.own,
    }
    return {"transport": transport, "token": trust.token, "timeout": membership.timeout, "outage": membership.outage}
