"""Counts the TCP segments that a job's links retransmitted, for the manifest.

A total is None unless every sender has reported its count. Without one of them the number would be too small.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from thalweg.job.common import server_reports
from thalweg.job.common.server_reports import Counting, ResentCounts
from thalweg.outcome.core import COUNTED

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from thalweg.outcome import Entry

# Maximum wait for the clients to report how many segments of their last update they retransmitted.
COUNT_SECONDS: Final = 2.0


def counted(server: Counting, absent: Callable[[], object], senders: Container[str]) -> ResentCounts:
    """Return how many segments a server and its clients sent again. Call it once the last transfer is confirmed.

    A direction is None if a party cannot count or has not reported, or if a client has left, because its count for its
    last update is then unknown. ``absent`` returns the clients that are not connected. ``senders`` are the clients that
    sent an update; others have nothing to report.
    """
    began = time.monotonic()
    clients = server_reports.resent(server, COUNT_SECONDS)
    # The core returns before the timeout if all connected clients have reported.
    if time.monotonic() - began >= COUNT_SECONDS or absent():
        return ResentCounts()
    reported = [counts for name, counts in clients.items() if counts.up is not None or name in senders]
    return ResentCounts(totals(clients.values()).down, totals(reported).up)


def totals(each: Iterable[ResentCounts]) -> ResentCounts:
    """Return two sums: down and up. A sum is None if one of its counts is None, or if there are no counts."""
    every = list(each)
    return ResentCounts(_total([one.down for one in every]), _total([one.up for one in every]))


def _total(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def manifest_counts(counts: ResentCounts, first: int, *, broker: bool) -> Mapping[str, object]:
    """Return the counts for the manifest. They begin at round ``first``, and do not include a broker's segments."""
    return {"first": first, **vars(counts), **({"broker": None} if broker else {})}


def senders(rounds: Iterable[Entry]) -> frozenset[str]:
    """Return the clients whose updates count in one of a record's rounds."""
    return frozenset(one["client"] for entry in rounds for one in entry["clients"] if one["state"] in COUNTED)
