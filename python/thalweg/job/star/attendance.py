"""``Attendance``: how many rounds each client took part in, why it missed others, and what its process used.

Its memory does not grow with the number of rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from thalweg.machine import Usage
from thalweg.outcome import Entry
from thalweg.outcome.core import COUNTED, Absence, Participant

# At the end of a job at most so many absent clients get a line each. The others are only counted.
MAX_NAMED: Final = 10


@dataclass
class _Client:
    counted: int = 0
    missed: int = 0
    reason: str | None = None
    left: bool = False
    # Whether it had not connected when the job ended.
    away: bool = False
    used: Usage = field(default_factory=Usage)


class Attendance:
    """Counts the participants of every round."""

    def __init__(self) -> None:
        self.rounds = 0
        self._clients: dict[str, _Client] = {}
        # The clients that took part in a round of this server, or departed.
        self._seen: set[str] = set()

    def add(self, participants: Iterable[Participant]) -> None:
        """Count a round. ``participants`` are those of its outcome."""
        self.rounds += 1
        for part in participants:
            self._seen.add(part.client)
            client = self._count(part.client, counts=part.counts, reason=part.reason)
            if part.usage is not None:
                client.used = _larger(client.used, Usage(part.usage.cpu_seconds, part.usage.peak_rss_bytes))

    def add_recorded(self, entries: Iterable[Entry]) -> None:
        """Count the rounds of a record that is resumed. What clients used then is not counted."""
        for entry in entries:
            self.rounds += 1
            for part in entry["clients"]:
                self._count(part["client"], counts=part["state"] in COUNTED, reason=part["reason"])

    def departed(self, clients: Iterable[tuple[str, str, bool]]) -> None:
        """Take the core's list of clients that are not connected now: name, why, and whether it left for good.

        A client that is not in the list is connected, perhaps again, so it no longer counts as having left.
        """
        for client in self._clients.values():
            client.left = False
        for name, reason, left in clients:
            self._seen.add(name)
            client = self._of(name)
            client.reason, client.left = reason, left

    def never_came(self, expected: Iterable[str], present: Collection[str]) -> None:
        """Mark the clients that this server has not seen: neither now (``present``) nor among those that departed.

        They are those of the record that is resumed, and the ``expected`` ones. Called after ``departed``, which gives
        the others their reasons.
        """
        for name in {*self._clients, *expected} - {*present, *self._seen}:
            client = self._of(name)
            client.away, client.reason = True, "it has not connected" + (" again" if client.counted else "")

    def names(self) -> list[str]:
        """Return all clients that took part or departed, sorted."""
        return sorted(self._clients)

    def usage_of(self, client: str) -> Usage:
        """Return the largest ``cpu_seconds`` and ``peak_rss_bytes`` that a client reported with an update."""
        return self._clients[client].used if client in self._clients else Usage()

    def peak_of(self, client: str) -> int | None:
        """Return the largest peak memory that a client reported with an update, in bytes; None if it reported none."""
        return self.usage_of(client).peak_rss_bytes

    def absences(self) -> list[Absence]:
        """Return the clients that missed a round, left for good or never came, sorted by name."""
        return [
            Absence(name, client.counted, client.reason, client.left)
            for name, client in sorted(self._clients.items())
            if client.missed or client.left or client.away
        ]

    def _count(self, name: str, *, counts: bool, reason: str | None) -> _Client:
        """Count a client's part in a round."""
        client = self._of(name)
        if counts:
            client.counted += 1
        else:
            client.missed += 1
            client.reason = reason
        return client

    def _of(self, name: str) -> _Client:
        return self._clients.setdefault(name, _Client())


def _larger(before: Usage, now: Usage) -> Usage:
    """Return the larger CPU time and the larger peak memory of two."""
    cpu = [one.cpu_seconds for one in (before, now) if one.cpu_seconds is not None]
    peak = [one.peak_rss_bytes for one in (before, now) if one.peak_rss_bytes is not None]
    return Usage(max(cpu, default=None), max(peak, default=None))


def sentences(absences: Iterable[Absence], rounds: int) -> list[str]:
    """Return a line for each absence. If there are more than ``MAX_NAMED``, one line counts the rest."""
    lines = [f"{one.client} is in {one.counted} of {rounds} means: {one.reason or 'not known why'}" for one in absences]
    more = len(lines) - MAX_NAMED
    return lines if more <= 0 else [*lines[:MAX_NAMED], f"and {more} more; see participants in the record"]
