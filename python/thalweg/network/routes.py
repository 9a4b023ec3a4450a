"""The paths of packets, chosen as the relay does: those with the fewest links. In a tie the link named first wins."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from thalweg.network.spec import Link, Spec

Hop: TypeAlias = "tuple[Link, str]"
_Into: TypeAlias = "dict[str, list[tuple[str, Hop]]]"


def routes(spec: Spec) -> dict[tuple[str, str], list[Hop]]:
    """Return the hops between each two hosts that exchange updates, both ways. A hop is a link with its direction."""
    into: _Into = {}
    for link in spec.links:
        into.setdefault(link.b, []).append((link.a, (link, "ab")))
        into.setdefault(link.a, []).append((link.b, (link, "ba")))
    pairs = [pair for one, other in spec.connected for pair in ((one, other), (other, one))]
    return {(source, target): _path(into, source, target) for source, target in pairs}


def _path(into: _Into, source: str, target: str) -> list[Hop]:
    """Search breadth first, from the target back over the links that lead to it; return the hops from the source."""
    following: dict[str, tuple[str, Hop]] = {}
    ring = deque([target])
    while ring and source not in following:
        node = ring.popleft()
        for before, hop in into.get(node, ()):
            if before != target and before not in following:
                following[before] = (node, hop)
                ring.append(before)
    path: list[Hop] = []
    while source != target:
        source, hop = following[source]
        path.append(hop)
    return path
