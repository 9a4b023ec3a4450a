"""From a plan to the options of the core's servers and clients: transport, trust, layers."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thalweg.transports.links import login

if TYPE_CHECKING:
    from thalweg.plan import Plan


def server_options(plan: Plan, trust: Mapping[str, Any], emulate: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the core's options of a server; ``trust`` has ``tls``, ``secret`` or ``token``, ``login``.

    ``emulate`` is a layer that makes links like those of a network.
    """
    job, chosen = plan.job, plan.aggregation
    options = {
        "transport": {**_transport(plan, trust), "tls": trust.get("tls")},
        "expected": job.clients,
        "choose": plan.chosen,
        "enough": job.enough or 1,
        "deadline": job.deadline,
        "grace": job.grace,
        "liveness": job.liveness,
        "chunk": plan.transport.chunk,
        "fanout": plan.transport.fanout,
        "gather": plan.transport.gather,
        "partial": chosen.partial,
        "repair": plan.repair.model_dump(),
        "precision": plan.precision,
        "staging": chosen.staging,
        "secret": trust.get("secret"),
        "token": trust.get("token"),
        "job": secrets.randbits(63),
        "seed": job.seed,
        "layers": _layers(plan, emulate),
    }
    return {name: value for name, value in options.items() if value is not None}


def client_options(
    plan: Plan, trust: Mapping[str, Any], *, seed: int, emulate: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the core's options of a client that has the server's plan at hand, as those of ``thalweg run``."""
    transport = {**_transport(plan, trust), "tls": trust.get("tls")}
    return {"transport": transport, "token": trust.get("token"), "seed": seed, "layers": _layers(plan, emulate)}


def _transport(plan: Plan, trust: Mapping[str, Any]) -> dict[str, Any]:
    chosen = plan.transport.model_dump(include={"congestion", "streams", "send_buffer", "receive_buffer"})
    named = plan.security.login_file
    known = trust.get("login") or login(None if named is None else Path(named))
    chosen |= {"own": plan.transport.options, "login": known}
    return {name: value for name, value in chosen.items() if value is not None}


def _layers(plan: Plan, emulate: Mapping[str, Any] | None) -> dict[str, Any]:
    layers: dict[str, Any] = {} if emulate is None else {"emulate": dict(emulate)}
    if plan.layers.throttle is not None:
        layers["throttle"] = f"{plan.layers.throttle}bit"
    if plan.layers.fault is not None:
        layers["fault"] = plan.layers.fault.model_dump(exclude_none=True)
    return layers | seal(plan)


def seal(plan: Plan) -> dict[str, Any]:
    """Return the core's options of the layer that seals updates, which both ends must have; empty without one."""
    if plan.layers.seal is None:
        return {}
    return {"seal": plan.layers.seal.model_dump()}
