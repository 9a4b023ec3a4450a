"""How many segments a job's links sent again, as the manifest keeps it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

# Seconds to wait for clients that have yet to say what they sent again of their last update: a few round trips.
COUNT_SECONDS: Final = 2.0


class Counting(Protocol):
    """A server of the core's."""

    def resent(self, timeout: float) -> str:
        """Return the segments retransmitted on the way to each client and by it, as JSON."""


def resent(server: Counting, first: int) -> Mapping[str, Any]:
    """Return ``{"first", "down", "up"}``: segments that the server and its clients sent again since round ``first``.

    None in a direction means that no transport there can count. Call it when the last transfer is confirmed.
    """
    clients = json.loads(server.resent(COUNT_SECONDS)).values()
    found: dict[str, int | None] = {"first": first}
    for way in ("down", "up"):
        counted = [client[way] for client in clients if client[way] is not None]
        found[way] = sum(counted) if counted else None
    return found
