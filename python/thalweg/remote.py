"""Jobs on several machines: ``thalweg server`` and ``thalweg client``."""

from __future__ import annotations

import importlib
import json
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thalweg import _core, links, machine, pki
from thalweg.errors import PlanError
from thalweg.host import Result, hosting, peak_of, use_of
from thalweg.participant import take_part
from thalweg.parties import AppClient, Described, PartyMaker
from thalweg.roster import Roster
from thalweg.watching import Note

if TYPE_CHECKING:
    from thalweg.plan import Plan
    from thalweg.progress import Progress


def listen_url(plan: Plan) -> str:
    """Return where a server of ``plan`` listens: its hosts.server, else its transport.url."""
    return plan.url if plan.hosts.server is None else f"{plan.scheme}://{plan.hosts.server}"


def serve_job(plan: Plan, url: str, progress: Progress, *, resume: Path | None = None) -> Result:
    """Serve a job at ``url`` to clients that come by themselves, and return what it came to.

    Raises what ``host.hosting`` raises; PlanError for what only local jobs have; LinkError if others can reach
    ``url`` and nothing says who may join.
    """
    asked = [name for name in ("network", "stress") if getattr(plan, name) is not None]
    if asked:
        raise PlanError(
            f"[{asked[0]}] is of jobs on one machine, whose links and clients are its own",
            f"Start it with `thalweg run`, or remove [{asked[0]}]",
        )
    trust = links.server_trust(plan, url)
    cpu = machine.cpu_seconds()
    with hosting(plan, url, trust, progress, resume) as host:
        address = host.server.address
        guarded = "encrypted" if "tls" in trust else "not encrypted" if "secret" in trust else "open to this machine"
        progress.note(f"listening on {address} ({guarded}), record: {host.record.path}")
        progress.note(f"waiting for {plan.job.clients} clients{_expected(plan)}")
        host.wait(lambda: None)
        roster = Roster(plan.job.clients, list(plan.hosts.clients or []))
        host.serve(lambda: roster.update(host.connected()))
        peak = machine.peak_rss_bytes()
        names = roster.names
        own = {"cpu_seconds": machine.cpu_seconds() - cpu, "peak_rss_bytes": peak}
        parties = [("server", own), *((name, use_of(host.record.entries, name)) for name in names)]
        host.record.table("parties", [{"party": name, **used} for name, used in parties])
    return host.result(peak, [peak_of(host.record.entries, name) for name in names])


@dataclass(frozen=True)
class Membership:
    """How a client gets into a job. ``target`` is the server's URL or a plan file; files are PEM."""

    target: str
    name: str | None
    token_file: Path | None
    ca: Path | None
    cert: Path | None
    key: Path | None
    tls: str
    congestion: str | None
    login_file: Path | None
    own: Mapping[str, object]
    patience: float


def join_job(
    membership: Membership,
    app: str | None,
    data_root: str | None,
    threads: int | None,
    note: Note,
) -> dict[str, Any]:
    """Take part in a job until it is done; return ``{"name", "url", "rounds", "peak_rss_bytes"}``.

    ``app`` is module:object; without it the server says what is trained. Raises PlanError for what is wrong on
    this side, LinkError or CoreError if the server cannot be reached or does not let the client in.
    """
    url, token_file, layers = _target(membership)
    token = None if token_file is None else pki.read_token(token_file)
    name = membership.name or (token.name if token else socket.gethostname())
    options = {**_options(membership, url, token), "layers": layers}
    arena, maker = _party(app, name, data_root, threads, note)
    client = _core.Client(url, name, json.dumps(options), arena)
    note(f"{name}: joining {url}")
    try:
        rounds = take_part(client, maker, note)
    finally:
        client.close("the client ends")
    return {"name": name, "url": url, "rounds": rounds, "peak_rss_bytes": machine.peak_rss_bytes()}


def load_app(text: str) -> Any:
    """Return the app that ``module:object`` names; a class is instantiated. Raises PlanError."""
    module_name, _, attribute = text.partition(":")
    if not module_name or not attribute:
        raise PlanError(f"{text!r} does not name an app", "Write module:object, as my_app:App")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise PlanError(f"cannot load the app {text}: {error}", "Start it in the folder of the module") from error
    finally:
        sys.path.pop(0)
    app = found() if isinstance(found, type) else found
    missing = [method for method in ("model", "train") if not callable(getattr(app, method, None))]
    if missing:
        raise PlanError(f"the app {text} has no {missing[0]}()", "An app has model(), train() and evaluate()")
    return app


def _expected(plan: Plan) -> str:
    hosts = plan.hosts.clients
    return "" if hosts is None else ": " + ", ".join(f"{name} ({host})" for name, host in hosts.items())


def _target(membership: Membership) -> tuple[str, Path | None, Mapping[str, Any]]:
    """Return the server's URL, the token's file, and the layer that seals updates if there is one.

    A plan may name them, and the command line goes before it.
    """
    target = membership.target
    if "://" in target:
        return target, membership.token_file, {}
    from thalweg.plan import Plan

    plan = Plan.load(Path(target))
    if plan.hosts.server is None:
        raise PlanError(f"{target} does not say where the server is", "Give hosts.server, or the URL of the server")
    named = plan.security.token_file
    return listen_url(plan), membership.token_file or (None if named is None else Path(named)), links.seal(plan)


def _options(membership: Membership, url: str, token: pki.Token | None) -> dict[str, Any]:
    if membership.tls not in ("auto", "on", "off"):
        raise PlanError(f"--tls is {membership.tls!r}", "Give auto, on or off")
    if (membership.cert is None) != (membership.key is None):
        raise PlanError("a certificate and its key go together", "Give both --cert and --key, or neither")
    identity: Mapping[str, str] | None = None
    if membership.cert is not None and membership.key is not None:
        identity = {"certificate": pki.read(membership.cert), "key": pki.read(membership.key)}
    authority = None if membership.ca is None else pki.read(membership.ca)
    trust = links.remote_trust(url, token, authority, identity, membership.tls)
    transport = {
        "tls": trust.get("tls"),
        "congestion": membership.congestion,
        "login": links.login(membership.login_file),
        "own": membership.own,
    }
    return {"transport": transport, "token": trust.get("token"), "patience": membership.patience}


def _party(
    app: str | None, name: str, data_root: str | None, threads: int | None, note: Note
) -> tuple[_core.Arena | None, PartyMaker]:
    if app is None:
        return None, Described(name, data_root=data_root, threads=threads, note=note)
    from thalweg.binding import bind

    loaded = load_app(app)
    bound = bind(loaded.model())
    data = loaded.train_data() if hasattr(loaded, "train_data") else None
    return bound.arena.core, lambda _config, _arena: AppClient(loaded, bound, data, note)
