"""The paths that packets take: the fewest links, and of those the ones that are named first."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from thalweg.network.topology import SERVER

if TYPE_CHECKING:
    from thalweg.network.spec import Link, Spec

Hop: TypeAlias = "tuple[Link, str]"


def routes(spec: Spec) -> dict[tuple[str, str], list[Hop]]:
    """Return the hops from the server to each client and back, each a link and its direction (ab or ba)."""
    found: dict[tuple[str, str], list[Hop]] = {}
    away = _from(spec, SERVER)
    for client in spec.clients:
        there = away[client]
        found[SERVER, client] = there
        found[client, SERVER] = [(link, "ba" if direction == "ab" else "ab") for link, direction in reversed(there)]
    return found


def _from(spec: Spec, start: str) -> dict[str, list[Hop]]:
    """Return the hops to every node, breadth first."""
    beside: dict[str, list[tuple[Link, str, str]]] = {}
    for link in spec.links:
        beside.setdefault(link.a, []).append((link, "ab", link.b))
        beside.setdefault(link.b, []).append((link, "ba", link.a))
    paths: dict[str, list[Hop]] = {start: []}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        for link, direction, other in beside.get(node, ()):
            if other not in paths:
                paths[other] = [*paths[node], (link, direction)]
                waiting.append(other)
    return paths
