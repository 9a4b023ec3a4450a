"""Decodes what a server of the core reports as JSON into typed values. A tree's root reports in the same form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from thalweg import wire


class Departure(NamedTuple):
    """A client that is not connected, the reason, and whether it left for good."""

    client: str
    reason: str
    for_good: bool


@dataclass(frozen=True)
class ResentCounts:
    """How many TCP segments were sent again: ``down`` by the end that listens, ``up`` by the end that connected.

    None if not every sender of that direction can count and has reported.
    """

    down: int | None = None
    up: int | None = None


class Counting(Protocol):
    """A server that counts retransmitted segments."""

    def resent(self, timeout: float) -> str:
        """Wait at most ``timeout`` seconds; return the counts of the link with each client, by name, as JSON."""


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
    """Return the counts of the link with each client, by name. A tree's root returns those of each of its nodes."""
    return wire.decode(dict[str, ResentCounts], server.resent(timeout))
