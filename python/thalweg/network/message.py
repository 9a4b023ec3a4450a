"""Emulation at message level: the settings of the layer around each link, and a check for what needs packet level."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypedDict

from typing_extensions import NotRequired

from thalweg.errors import PlanError
from thalweg.network.spec import Spec
from thalweg.sections.network import MTU, NetworkSection


class Shapes(TypedDict):
    """Both directions of a client's link: from the client (``up``) and to it. ``Shape.table`` has the keys."""

    up: Mapping[str, object]
    down: Mapping[str, object]


class EmulateLayer(Shapes):
    """The settings of the core's emulate layer, which are the same for all clients but those that ``clients`` has."""

    seed: int
    clients: NotRequired[Mapping[str, Shapes]]


def check(network: NetworkSection) -> None:
    """Raise PlanError if the network has something that only emulation at packet level can do."""
    settings = {
        f"topology = '{network.topology}'": network.topology != "star",
        "[network.broker]": network.broker is not None,
        "[[network.changes]]": bool(network.changes),
        "[network.trace]": network.trace is not None,
        "limiter = 'device'": network.limiter == "device",
        f"mtu = {network.mtu}": network.mtu != MTU,
    }
    for setting, is_used in settings.items():
        if is_used:
            raise PlanError(
                f"emulation at message level puts a layer around each link and has no {setting}",
                f"Remove {setting}, or take emulator = 'packet', which needs root",
            )


def layers(spec: Spec) -> EmulateLayer:
    """Return the settings of the core's emulate layer for a star.

    ``up`` and ``down`` are the most frequent shapes of a client's link. ``clients`` has the clients with other shapes.
    """
    clients = set(spec.clients)
    own = [link for link in spec.links if link.a in clients]  # links of switches and nodes are idle here
    ways: dict[str, Shapes] = {link.name: {"up": link.ab.table(), "down": link.ba.table()} for link in own}
    most = Counter((link.ab, link.ba) for link in own).most_common(1)[0][0]
    common: Shapes = {"up": most[0].table(), "down": most[1].table()}
    layer: EmulateLayer = {"seed": spec.seed, "up": common["up"], "down": common["down"]}
    others = {name: way for name, way in ways.items() if way != common}
    return {**layer, "clients": others} if others else layer
