"""How many segments a job's links sent again, as the manifest keeps it.

A total is a number only if everybody who sends has reported. Else it is None: there is no number that would be right.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from thalweg.job.star.attendance import COUNTED

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

# Seconds to wait for clients' counts of what they retransmitted of their last update: a few round trips.
COUNT_SECONDS: Final = 2.0
WAYS: Final = ("down", "up")
# Segments by direction: ``down`` were sent by the end that listens, ``up`` by the end that connected to it.
Counts: TypeAlias = "Mapping[str, int | None]"


class Counting(Protocol):
    """A server of the core, for rounds or for tasks."""

    def resent(self, timeout: float) -> str:
        """Return, as JSON, each client's count of segments retransmitted down to it and up by it."""


def counted(server: Counting, absent: Callable[[], object], senders: Container[str]) -> Counts:
    """Return the segments that a server and its clients sent again. Call it when the last transfer is confirmed.

    A direction is None if somebody cannot count or has not reported, or if a client is gone: what it sent again of its
    last update is not known. ``absent`` returns the clients that are not connected. ``senders`` are those that sent an
    update; others need not have reported anything.
    """
    began = time.monotonic()
    clients: Mapping[str, Counts] = json.loads(server.resent(COUNT_SECONDS))
    # The core returns at once when all clients that are connected have reported their counts.
    if time.monotonic() - began >= COUNT_SECONDS or absent():
        return dict.fromkeys(WAYS)
    silent = [name for name, counts in clients.items() if counts["up"] is None and name not in senders]
    up = totals(counts for name, counts in clients.items() if name not in silent)["up"]
    return {"down": totals(clients.values())["down"], "up": up}


def totals(each: Iterable[Counts]) -> Counts:
    """Return the sum of counts by direction. It is None if one of the counts is None, or if there are no counts."""
    every = list(each)
    found = {way: [counts[way] for counts in every] for way in WAYS}
    return {way: sum(n for n in ns if n is not None) if ns and None not in ns else None for way, ns in found.items()}


def manifest_counts(counts: Counts, first: int, *, broker: bool) -> Mapping[str, Any]:
    """Return the counts for the manifest. They begin at round ``first``, and do not include a broker's segments."""
    return {"first": first, **counts, **({"broker": None} if broker else {})}


def senders(rounds: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the clients whose updates count in one of a record's rounds."""
    return frozenset(one["client"] for entry in rounds for one in entry["clients"] if one["state"] in COUNTED)
