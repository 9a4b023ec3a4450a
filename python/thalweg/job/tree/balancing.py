"""Has the control plane decide, while a job runs, which clients move from overloaded nodes to others."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from thalweg import _core, wire
from thalweg.job.tree.known import Node
from thalweg.trees.balance import Balance, Rules


class LoadBalancer:
    """Hands the control plane what nodes have measured, at most once in ``tree.every``."""

    def __init__(self, rules: Rules, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without measurements. ``clock`` returns seconds."""
        self._rules, self._clock = rules, clock
        self._core = _core.TreeBalancer(wire.encode(rules.config()))
        self._due = clock() + rules.every
        # How many of each node's plans have been handed over. A plan has what was measured since the one before.
        self._seen: dict[str, int] = {}
        # Clients that stay where they are: they did not reach a node to which they were moved.
        self.stays: set[str] = set()

    def decide(self, nodes: Sequence[Node], ended: Collection[str]) -> Balance | None:
        """Return which clients of these nodes move; None if no decision is due, or nothing was measured since the last.

        The clients ``ended`` do not move: their processes have ended.
        """
        if self._clock() < self._due:
            return None
        measured = {node.name: self._measured(node) for node in nodes}
        if not any(measured.values()):
            return None
        self._due = self._clock() + self._rules.every
        connected, kept = {name for node in nodes for name in node.connected}, self.stays.union(ended)
        loads = [
            {
                "node": node.name,
                "capacity": self._rules.capacity,
                "clients": [name for name in node.clients if name in connected and name not in kept],
                "measured": measured[node.name],
                "group": self._rules.groups.get(node.name),
                # Without an address that other nodes' clients can reach, as below a middle node, nobody moves.
                "reached_by": node.reached.partition("://")[0] or None,
            }
            for node in nodes
        ]
        return wire.decode(Balance, self._core.decide(wire.encode(loads)))

    def _measured(self, node: Node) -> list[dict[str, object]]:
        """Return what a node has measured since the last decision, the oldest first."""
        decisions = None if node.state is None or node.state.tree is None else node.state.tree.decisions
        if decisions is None:
            return []
        seen = self._seen.get(node.name, 0)
        if decisions.count < seen:
            seen = 0  # the node was started anew, and counts anew
        self._seen[node.name] = decisions.count
        # A node's first plan follows from the number of its clients: nothing is measured then.
        fresh = (one for one in decisions.latest if one.number > max(seen, 1))
        return [{"seconds": one.seconds, "queue": one.queue} for one in fresh]
