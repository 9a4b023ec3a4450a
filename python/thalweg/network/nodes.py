"""A tree's nodes in a network: a client's link leads to its node, and one switch joins the nodes and the server."""

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
    """The nodes that clients send to. ``homes`` gives each client's node.

    ``link`` is the rate of the link between the switch and a node or the server, in bits a second each way. ``ingress``
    is the rate that all clients of a node share on their way to it. None is no limit.
    """

    homes: Mapping[str, str]
    link: int | None = None
    ingress: int | None = None

    @property
    def names(self) -> list[str]:
        """The nodes that have clients, in the order in which ``homes`` first names them."""
        return list(dict.fromkeys(self.homes.values()))

    def hang(self, star: Layout) -> Layout:
        """Return a star of clients around a server, with the nodes put between clients and server."""
        ends = {name: name if self.ingress is None else door(name) for name in self.names}
        wires = [replace(wire, b=ends[self.homes[wire.a]]) for wire in star.wires]
        if self.ingress is not None:
            inwards = Pair(_rate(self.ingress), Keys({}, PLACE))
            wires += [Wire(end, end, name, inwards, steady=True) for name, end in ends.items()]
        between = IDEAL if self.link is None else Pair(_rate(self.link), _rate(self.link))
        wires += [Wire(name, name, SWITCH, between, steady=True) for name in (SERVER, *self.names)]
        doors = () if self.ingress is None else tuple(ends.values())
        return Layout((SERVER, *self.names, *(h for h in star.hosts if h != SERVER)), tuple(wires), (SWITCH, *doors))


def dealt(clients: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Assign nodes to clients in turn. Used before the real placement of clients is known."""
    return {client: names[place % len(names)] for place, client in enumerate(clients)}


def door(node: str) -> str:
    """Return the name of the switch in front of a node, where its clients share the rate ``ingress``."""
    return f"{node}-clients"


def check(network: NetworkSection) -> None:
    """Raise PlanError if the network has something that only a single server can have."""
    asked = {f"network.topology = '{network.topology}'": network.topology != "star"}
    asked |= {"[network.broker]": network.broker is not None}
    for what, is_so in asked.items():
        if is_so:
            raise PlanError(
                f"{what} is of one server, and the clients of a tree of several nodes are a star around each",
                f"Remove {what.partition(' =')[0]}; nodes.link says what is between nodes",
            )


def _rate(rate: int) -> Keys:
    return Keys({"rate": rate}, PLACE)
