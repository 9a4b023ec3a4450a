"""Some of a tree's clients take part in a round, which ends at exactly so many updates, whatever becomes of nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping


class Admitting:
    """Draws clients by lot: first as many as a round wants, and later as many as are missing.

    Each batch is one round of nodes, whose sums the top has before the next batch is drawn. So no more are counted than
    were wanted, and a client is asked once a round at most.
    """

    def __init__(self, goal: int, seed: int, number: int) -> None:
        """Begin the round of this ``number``, which wants ``goal`` updates."""
        self._goal, self._salt = goal, f"{seed}/{number}/"
        self._asked: set[str] = set()
        self._counted = 0

    @property
    def missing(self) -> int:
        """How many updates the round still wants."""
        return self._goal - self._counted

    def draw(self, there: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
        """Return who is to take part now, by node; ``there`` are the clients that are at each node."""
        at = {client: node for node, clients in there.items() for client in clients if client not in self._asked}
        drawn: dict[str, list[str]] = {}
        for client in sorted(at, key=self._lot)[: self.missing]:
            drawn.setdefault(at[client], []).append(client)
            self._asked.add(client)
        return drawn

    def counted(self, updates: int) -> None:
        """Hear that the top has so many updates more."""
        self._counted += updates

    def may_draw(self, clients: Iterable[str]) -> bool:
        """Return whether one of these clients has not been asked yet."""
        return not self._asked.issuperset(clients)

    def _lot(self, client: str) -> tuple[bytes, str]:
        """Return a client's lot, on which nobody else's name has an influence."""
        return hashlib.sha256((self._salt + client).encode()).digest(), client
