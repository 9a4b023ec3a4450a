"""Where clients of a tree belong: what nodes are told of it, and where those go on whose node does not come back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from thalweg.job.tree.tops import Node
from thalweg.trees import live

if TYPE_CHECKING:
    from thalweg.plan import Plan

# Most other nodes that a client is told of.
MOST_OTHERS: Final = 8

# Decides where clients of a lost node go: by the node's name, its clients, and how many each node has that is left.
# Gives their nodes, and why. A client may get none.
Place = Callable[[str, Sequence[str], Mapping[str, int]], tuple[dict[str, str], Sequence[str]]]


def spread(_lost: str, clients: Sequence[str], left: Mapping[str, int]) -> tuple[dict[str, str], Sequence[str]]:
    """Give each client to the node that has the fewest."""
    load, homes = dict(left), {}
    for client in clients:
        homes[client] = min(load, key=lambda name: load[name])
        load[homes[client]] += 1
    return homes, []


def placing(plan: Plan) -> Place:
    """Return how a plan's control plane does it."""
    if plan.nodes is None:
        return spread
    return lambda lost, clients, left: live.placed_anew(plan, lost, clients, left)


def reached(address: str, advertised: str | None) -> str | None:
    """Return where clients reach a node that listens at an address, None if nobody has said: it may be of no host."""
    host = address.partition("://")[2].rpartition(":")[0]
    return advertised or (None if host in ("0.0.0.0", "[::]") else address)  # noqa: S104 - compared, not bound


def told(nodes: Sequence[Node], moved: Mapping[str, int], counted: Mapping[str, int]) -> dict[str, Any]:
    """Return what nodes are told: where each listens, with which clients, and of those that moved the last rounds.

    ``moved`` has the last round that a client may have been in at the node that it came from, ``counted`` the last
    that its update counts in.
    """
    at = [
        {
            "node": one.name,
            "url": one.reached,
            "clients": list(one.clients),
            "expected": one.expected,
            "gone": one.reason or None,
        }
        for one in nodes
    ]
    kept = {client: counted[client] for client in moved if client in counted}
    return {"nodes": at, "after": dict(moved), "counted": kept}


def homes(name: str, told: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return how many clients a node has, and what its server is told of where clients belong; ``own`` are its own."""
    nodes = told["nodes"]
    place = next(place for place, one in enumerate(nodes) if one["node"] == name)
    # Each names first the one after it, so that clients do not all go to the same.
    rest = [one for one in nodes[place + 1 :] + nodes[:place] if one["clients"] or one["gone"] is None]
    # Clients that could not be sent back to their own node are not told of others.
    here = [one["url"] for one in rest if one["url"] and one["gone"] is None] if nodes[place]["url"] else []
    own = set(nodes[place]["clients"])
    return nodes[place]["expected"], {
        "elsewhere": {client: one["url"] for one in rest if one["url"] for client in one["clients"]},
        "others": here[:MOST_OTHERS],
        "own": sorted(own),
        **{key: {client: last for client, last in told[key].items() if client in own} for key in ("after", "counted")},
    }
