"""Counts the segments that a job's links retransmitted, for the manifest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

# Seconds to wait for clients' counts of what they retransmitted of their last update: a few round trips.
COUNT_SECONDS: Final = 2.0


class Counting(Protocol):
    """The core's server, as far as it is used here."""

    def resent(self, timeout: float) -> str:
        """Return, as JSON, each client's count of segments retransmitted down to it and up by it."""


def resent(server: Counting, first: int) -> Mapping[str, Any]:
    """Return ``{"first", "down", "up"}``: segments that server and clients retransmitted since round ``first``.

    A direction is None if no link can count there. Call this after the last transfer is confirmed.
    """
    clients = json.loads(server.resent(COUNT_SECONDS)).values()
    found: dict[str, int | None] = {"first": first}
    for way in ("down", "up"):
        counted = [client[way] for client in clients if client[way] is not None]
        found[way] = sum(counted) if counted else None
    return found
