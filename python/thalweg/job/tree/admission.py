"""Chooses the clients of a tree that take part in a round, so that the round counts exactly the wanted updates."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping


class Admission:
    """Draws a round's clients at random: first as many as its goal, then as many as the updates that are still missing.

    The nodes run one round for each batch of drawn clients. The next batch is drawn only after the top has the sums of
    the batch before. So a round never counts too many updates. It asks each client at most once.
    """

    def __init__(self, goal: int, seed: int, number: int) -> None:
        """Begin round ``number``, whose goal is ``goal`` updates."""
        self._goal, self._salt = goal, f"{seed}/{number}/"
        self._asked: set[str] = set()
        self._counted = 0

    @property
    def missing(self) -> int:
        """How many updates the round still lacks."""
        return self._goal - self._counted

    def draw(self, connected: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
        """Return the clients drawn to take part now, by node. ``connected`` has the clients of each node."""
        at = {client: node for node, clients in connected.items() for client in clients if client not in self._asked}
        drawn: dict[str, list[str]] = {}
        for client in sorted(at, key=self._lot)[: self.missing]:
            drawn.setdefault(at[client], []).append(client)
            self._asked.add(client)
        return drawn

    def counted(self, updates: int) -> None:
        """Add to the number of updates that the top has counted."""
        self._counted += updates

    def may_draw(self, clients: Iterable[str]) -> bool:
        """Return whether one of these clients has not been asked yet."""
        return not self._asked.issuperset(clients)

    def _lot(self, client: str) -> tuple[bytes, str]:
        """Return a client's sort key. It depends on the seed, the round and this client's name alone."""
        return hashlib.sha256((self._salt + client).encode()).digest(), client
