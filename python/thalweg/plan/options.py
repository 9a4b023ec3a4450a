"""Turns a plan into the options of the core's servers and clients: transport, trust, layers.

The mark ``thalweg.sections.marks.Core`` at a key names the option that the key sets.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

from pydantic import BaseModel

from thalweg import graphs
from thalweg.errors import PlanError
from thalweg.network.message import EmulateLayer
from thalweg.sections.marks import keys
from thalweg.transports.links import Trust, login
from thalweg.wire import Table

if TYPE_CHECKING:
    from thalweg.plan import Plan

# The options of a server of rounds that a server of tasks has too.
OF_TASKS: Final = frozenset(
    [
        *("transport", "layers", "seed", "issuer", "token", "revoked"),
        *("job", "chunk", "liveness", "grace", "precision", "staging"),
    ]
)

# The core's name of each mixing rule: how it fills in missing chunks.
MIXING: Final[Mapping[str, str]] = {
    "metropolis": "complement",
    "paper": "paper",
    "renormalise": "renormalise",
    "symmetric": "symmetric",
}
# Graphs whose nodes all have the same degree. On these the rule "paper" gives the weights of "metropolis".
REGULAR: Final = ("ring", "regular", "torus", "full", "exponential", "one-peer")
# Seconds for which a client of a run on this machine tries to join. An emulated path may have an RTT of 20 s, and
# connecting and greeting take six round trips (crates/wire/src/limits.rs).
JOINING: Final = 120.0


@dataclass(frozen=True)
class WorkersOptions:
    """The core's options of a node's workers.

    ``autoscaler`` is given if the number of workers follows the load, as in Knative. ``plans`` is given if the load
    is measured while the job runs, to plan the number of leaves or to move clients; the first plan is for ``updates``.
    ``container_start`` is in seconds. ``middle`` says who adds up the leaves'
    sums: "node", "reused" or "own".
    """

    count: int
    split: str
    data_plane: str
    side_process: bool
    start: str
    container_start: float
    autoscaler: Mapping[str, object] | None
    plans: Mapping[str, object] | None
    updates: int
    middle: str
    routes: str
    timing: str
    command: Sequence[str]


class CoreOptions(TypedDict, total=False):
    """Options of the core's servers, clients and nodes. Each of these ends refuses options that it does not have."""

    transport: Mapping[str, object]
    layers: Mapping[str, object]
    repair: Table
    residual: str
    issuer: str
    token: str | None
    own_token: str
    revoked: str
    seed: int
    job: int
    chunk: int
    liveness: float
    grace: float
    outage: float
    precision: str
    staging: int
    expected: int
    choose: int | float
    enough: int
    goal: int
    stale: int
    deadline: float
    fanout: str
    gather: str
    rounds: int
    wait: str
    ahead: int
    mixing: str
    share: str
    exchange: str
    plan: str
    graph: str
    start: str | None
    timeout: float
    tree: bool
    sums: bool
    withhold: bool
    workers: WorkersOptions
    memory: int
    max_result: int


def server_options(plan: Plan, trust: Trust, emulate: EmulateLayer | None = None) -> CoreOptions:
    """Return the core's options of a server.

    ``trust`` has ``tls``, ``issuer`` or ``token``, ``login`` and ``revoked``. ``emulate`` is a layer that emulates
    a network's links.
    """
    options = _options(plan, trust, emulate, client=False)
    # Options that follow from several keys.
    options |= {"choose": plan.chosen, "enough": plan.job.enough or 1, "precision": plan.precision}
    options |= {"issuer": trust.issuer, "token": trust.token, "revoked": trust.revoked, "job": secrets.randbits(63)}
    return cast("CoreOptions", {name: value for name, value in options.items() if value is not None})


def chosen(options: CoreOptions, names: Collection[str]) -> CoreOptions:
    """Return the options whose names are in ``names``."""
    return cast("CoreOptions", {name: value for name, value in options.items() if name in names})


def task_options(plan: Plan, trust: Trust, emulate: EmulateLayer | None = None) -> CoreOptions:
    """Return the core's options of a task server. The arguments are as for ``server_options``."""
    return chosen(server_options(plan, trust, emulate), OF_TASKS)


def client_options(
    plan: Plan, trust: Trust, *, seed: int, emulate: EmulateLayer | None = None, congestion: str | None = None
) -> CoreOptions:
    """Return the core's options of a client that has the server's plan, as the clients of ``thalweg run`` do.

    ``congestion`` is the client's own congestion control, if it has one.
    """
    options = _options(plan, trust, emulate, client=True, congestion=congestion)
    waits = {"outage": plan.job.outage}
    return cast("CoreOptions", {**options, "token": trust.token, "seed": seed, "timeout": JOINING, **waits})


def node_options(
    plan: Plan,
    trust: Trust,
    *,
    number: int,
    job: int,
    digests: Mapping[str, str],
    emulate: EmulateLayer | None = None,
) -> CoreOptions:
    """Return the core's options of a node of a graph.

    ``trust`` has ``tls``, the token that the node shows to nodes that it connects to (``own_token``), and what nodes
    that connect to it must show (``issuer`` or ``token``). ``number`` is the node's place, from 1. ``job`` is the job's
    number. ``digests`` are those of settings that must be equal at all nodes: ``plan``, ``graph`` and ``start``.
    """
    own = plan.transport.congestion_of(number - 1) if plan.transport.client_congestion else None
    options = _options(plan, trust, emulate, client=True, congestion=own)
    options |= {"issuer": trust.issuer, "token": trust.token, "own_token": trust.own_token}
    options |= {"seed": plan.job.seed + number, "job": job, "chunk": plan.transport.chunk}
    options |= {"rounds": plan.job.rounds, "liveness": plan.job.liveness, "precision": plan.precision}
    options |= {"wait": plan.wait, "deadline": plan.job.deadline, "ahead": plan.job.ahead, "mixing": mixing_of(plan)}
    options |= {"share": plan.job.share, "exchange": plan.exchange, **digests}
    return cast("CoreOptions", {name: value for name, value in options.items() if value is not None})


def compressing(scheme: str | None, down: str | None = None) -> dict[str, Table]:
    """Return the option of the layers with which both ends of a link compress updates, and models by ``down``."""
    schemes = {"scheme": scheme, "down": down}
    chosen = {name: value for name, value in schemes.items() if value is not None}
    return {"compress": chosen} if chosen else {}


def check_task_scheme(scheme: str | None) -> None:
    """Refuse a scheme that updates of tasks cannot have. Raises PlanError."""
    if scheme is not None and scheme.startswith("powersgd"):
        raise PlanError(
            "powersgd goes on with the factors of the update before, and tasks may have other tensors each time",
            "Take int8, int4, int2 or topk:F",
        )


def of_both_ends(plan: Plan) -> dict[str, Table]:
    """Return the core's options of the layers that both ends of a link need: those that seal and compress updates."""
    layers = {"seal": plan.layers.seal, "compress": plan.layers.compress}
    chosen: dict[str, Table] = {name: layer.model_dump() for name, layer in layers.items() if layer is not None}
    return chosen | compressing(plan.compression.scheme, plan.compression.down)


def mixing_of(plan: Plan) -> str:
    """Return the core's name for how a node mixes.

    On a regular graph "paper" gives the same weights as "metropolis", which needs no copy of each model.
    """
    if plan.weights == "paper" and graphs.parse(plan.job.graph or "").kind in REGULAR:
        return MIXING["metropolis"]
    return MIXING[plan.weights]


def _options(
    plan: Plan, trust: Trust, emulate: EmulateLayer | None, *, client: bool, congestion: str | None = None
) -> dict[str, object]:
    """Return the options of one end: those of the plan's keys with a value, and those of ``trust``."""
    transport: dict[str, object] = {}
    layers: dict[str, object] = {} if emulate is None else {"emulate": dict(emulate)}
    options: dict[str, Any] = {"transport": transport, "layers": layers}
    for key in keys(type(plan)):
        core = key.core
        if core is None or (client and not core.client):
            continue
        value = _value(plan, key.path)
        if value is not None:
            *path, name = (core.path or key.name).split(".")
            section: dict[str, Any] = options
            for part in path:
                section = section.setdefault(part, {})
            section[name] = value if core.write is None else core.write(value)
    named = plan.security.login_file
    broker_login = trust.login or login(None if named is None else Path(named))
    transport |= {"tls": trust.tls, **({} if broker_login is None else {"login": broker_login})}
    transport |= {} if congestion is None else {"congestion": congestion}
    return options


def _value(plan: Plan, path: str) -> Any:
    """Return the value of a key, a section as a table; None if the section of the key is missing."""
    value: Any = plan
    for name in path.split("."):
        value = getattr(value, name, None)
    return value.model_dump() if isinstance(value, BaseModel) else value
