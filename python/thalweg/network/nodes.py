"""Adds a tree's nodes to a network: each client's link leads to its node, and a switch joins nodes and server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from thalweg.errors import PlanError
from thalweg.network.shape import Keys
from thalweg.network.topology import IDEAL, SERVER, SWITCH, Layout, Pair, Wire
from thalweg.sections.network import NetworkSection

PLACE = "[nodes]"


@dataclass(frozen=True)
class Nodes:
    """The nodes to which clients send. ``homes`` maps each client to its node.

    ``middle`` are nodes that have other nodes below them instead of clients. ``link`` is the rate of the link between
    the switch and a node or the server, in bits a second each way. ``ingress`` is the rate that all clients of a node
    share on their way to it. None is no limit.
    """

    homes: Mapping[str, str]
    link: int | None = None
    ingress: int | None = None
    middle: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        """The nodes that have clients, in the order in which ``homes`` first names them."""
        return list(dict.fromkeys(self.homes.values()))

    def insert_into(self, star: Layout) -> Layout:
        """Return ``star``, clients around a server, with the nodes between the clients and the server."""
        ends = {name: name if self.ingress is None else ingress_switch(name) for name in self.names}
        wires = [replace(wire, b=ends[self.homes[wire.a]]) for wire in star.wires]
        if self.ingress is not None:
            inwards = Pair(_rate(self.ingress), Keys({}, PLACE))
            wires += [Wire(end, end, name, inwards, steady=True) for name, end in ends.items()]
        between = IDEAL if self.link is None else Pair(_rate(self.link), _rate(self.link))
        wires += [Wire(name, name, SWITCH, between, steady=True) for name in (SERVER, *self.names, *self.middle)]
        switches = (SWITCH, *(() if self.ingress is None else ends.values()))
        clients = (host for host in star.hosts if host != SERVER)
        return Layout((SERVER, *self.names, *self.middle, *clients), tuple(wires), switches)


def round_robin(clients: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Assign the nodes to clients in turn. This is used as long as the real placement of clients is unknown."""
    return {client: names[place % len(names)] for place, client in enumerate(clients)}


def ingress_switch(node: str) -> str:
    """Return the name of the switch in front of a node, where its clients share the rate ``ingress``."""
    return f"{node}-clients"


def check(network: NetworkSection) -> None:
    """Raise PlanError for settings of the network that are possible only without nodes."""
    settings = {f"network.topology = '{network.topology}'": network.topology != "star"}
    settings |= {"[network.broker]": network.broker is not None}
    for setting, is_used in settings.items():
        if is_used:
            raise PlanError(
                f"{setting} needs a single server, but the clients of a tree with nodes are a star around each node",
                f"Remove {setting.partition(' =')[0]}; nodes.link sets the links between nodes",
            )


def _rate(rate: int) -> Keys:
    return Keys({"rate": rate}, PLACE)
