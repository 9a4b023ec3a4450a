"""Reads the JSON that a server of the core reports into typed values. A tree's root reports in the same form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from thalweg import wire


class Departure(NamedTuple):
    """A client that is not connected now, why, and whether it left for good."""

    client: str
    reason: str
    for_good: bool


@dataclass(frozen=True)
class ResentCounts:
    """Segments that were sent again: ``down`` by the end that listens, ``up`` by the end that connected to it.

    None: not everybody who sends in that direction has counted and reported.
    """

    down: int | None = None
    up: int | None = None


class Counting(Protocol):
    """A server that counts what was sent again."""

    def resent(self, timeout: float) -> str:
        """Wait at most ``timeout`` seconds; return the segments sent again to and by each client, as JSON."""


class Departing(Protocol):
    """A server that knows which clients have left."""

    def departed(self) -> str:
        """Return the clients that are not connected now, as JSON."""


class Reporting(Counting, Departing, Protocol):
    """A server of the core, for rounds or for tasks, or the root of a tree."""

    def clients(self) -> str:
        """Return the names of the connected clients, as JSON."""


def clients(server: Reporting) -> list[str]:
    """Return the names of the connected clients."""
    return wire.decode(list[str], server.clients())


def departed(server: Departing) -> list[Departure]:
    """Return the clients that are not connected now."""
    return wire.decode(list[Departure], server.departed())


def resent(server: Counting, timeout: float) -> dict[str, ResentCounts]:
    """Return the segments sent again on the link with each client; of a tree's root, those at each node."""
    return wire.decode(dict[str, ResentCounts], server.resent(timeout))
