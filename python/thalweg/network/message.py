"""A network at message level: what the layer around each link is told, and what only packets show."""

from __future__ import annotations

from collections import Counter
from typing import Any

from thalweg.errors import PlanError
from thalweg.network.spec import Spec
from thalweg.sections.network import MTU, NetworkSection


def check(network: NetworkSection) -> None:
    """Refuse what a layer around each link cannot be. Raises PlanError."""
    asked = {
        f"topology = '{network.topology}'": network.topology != "star",
        "[network.broker]": network.broker is not None,
        "[[network.changes]]": bool(network.changes),
        "[network.trace]": network.trace is not None,
        "limiter = 'device'": network.limiter == "device",
        f"mtu = {network.mtu}": network.mtu != MTU,
    }
    for what, wanted in asked.items():
        if wanted:
            raise PlanError(
                f"emulation at message level puts a layer around each link and has no {what}",
                f"Remove {what}, or take emulator = 'packet', which needs root",
            )


def layers(spec: Spec) -> dict[str, Any]:
    """Return the core's layer for a star: ``up`` and ``down`` of most links, and ``clients`` that have others."""
    clients = set(spec.clients)
    own = [link for link in spec.links if link.a in clients]  # of peers and of nodes there are others, which are idle
    ways = {link.name: {"up": link.ab.table(), "down": link.ba.table()} for link in own}
    most = Counter((link.ab, link.ba) for link in own).most_common(1)[0][0]
    common = {"up": most[0].table(), "down": most[1].table()}
    others = {name: way for name, way in ways.items() if way != common}
    return {"seed": spec.seed, **common, **({"clients": others} if others else {})}
