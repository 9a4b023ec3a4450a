"""Decides at which node each client of a tree belongs, also after a node was lost, and tells the nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from thalweg.job.tree.known import Node
from thalweg.job.tree.messages import AssignClients, KnownNode
from thalweg.trees import live

if TYPE_CHECKING:
    from thalweg.plan import Plan

# Maximum number of other nodes that a node names to a client.
MOST_OTHERS: Final = 8


@dataclass(frozen=True)
class ClientHomes:
    """What a node's server learns about where clients belong; ``own`` are the node's own clients."""

    elsewhere: Mapping[str, str] = field(default_factory=dict)
    others: Sequence[str] = ()
    own: Sequence[str] = ()
    after: Mapping[str, int] = field(default_factory=dict)
    counted: Mapping[str, int] = field(default_factory=dict)

    def table(self) -> dict[str, object]:
        """Return what the core reads: all but ``own``."""
        return {key: value for key, value in vars(self).items() if key != "own"}


# A function that decides where the clients of a lost node go. Its arguments are the lost node's name, that node's
# clients, and the number of clients of each remaining node. It returns the new node of each client, and the reasons. A
# client may get no node.
Placing = Callable[[str, Sequence[str], Mapping[str, int]], tuple[dict[str, str], Sequence[str]]]


def place_evenly(_lost: str, clients: Sequence[str], left: Mapping[str, int]) -> tuple[dict[str, str], Sequence[str]]:
    """Give each client to the node that has the fewest clients."""
    load, homes = dict(left), {}
    for client in clients:
        homes[client] = min(load, key=lambda name: load[name])
        load[homes[client]] += 1
    return homes, []


def stay(_lost: str, _clients: Sequence[str], _left: Mapping[str, int]) -> tuple[dict[str, str], Sequence[str]]:
    """Give no client another node."""
    return {}, ["clients below middle nodes do not move"]


def placing(plan: Plan) -> Placing:
    """Return the function by which a plan's control plane moves clients; ``place_evenly`` for a plan without nodes."""
    if plan.nodes is None:
        return place_evenly
    return lambda lost, clients, left: live.placed_anew(plan, lost, clients, left)


def reached(address: str, advertised: str | None) -> str | None:
    """Return the URL at which clients reach a node; None if it listens at all its addresses and advertises none."""
    host = address.partition("://")[2].rpartition(":")[0]
    return advertised or (None if host in ("0.0.0.0", "[::]") else address)  # noqa: S104 - compared, not bound


def notice(nodes: Sequence[Node], moved: Mapping[str, int], counted: Mapping[str, int]) -> AssignClients:
    """Return what the root tells nodes: each node's address and clients, and the rounds of clients that moved.

    ``moved`` has, for each client that moved, the last round in which its former node may have counted its update.
    ``counted`` has the last round that did count an update of a client.
    """
    at = [KnownNode(one.name, one.reached, list(one.clients), one.expected, one.reason or None) for one in nodes]
    kept = {client: counted[client] for client in moved if client in counted}
    return AssignClients(at, dict(moved), kept)


def homes(name: str, notice: AssignClients) -> tuple[int, ClientHomes]:
    """Return how many clients a node has, and what its server learns about where clients belong.

    In the second, ``own`` are the node's own clients.
    """
    nodes = list(notice.nodes)
    at = next(at for at, one in enumerate(nodes) if one.node == name)
    # Each node names first the node after it, so that the clients of a lost node do not all go to the same node.
    rest = [one for one in nodes[at + 1 :] + nodes[:at] if one.clients or one.gone is None]
    # Without an address of its own a node names no others, because they could not send its clients back to it.
    here = [one.url for one in rest if one.url and one.gone is None] if nodes[at].url else []
    own = set(nodes[at].clients)
    return nodes[at].expected, ClientHomes(
        elsewhere={client: one.url for one in rest if one.url for client in one.clients},
        others=here[:MOST_OTHERS],
        own=sorted(own),
        after={client: last for client, last in notice.after.items() if client in own},
        counted={client: last for client, last in notice.counted.items() if client in own},
    )
