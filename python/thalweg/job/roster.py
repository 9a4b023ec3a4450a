"""Which client has which part of the data."""

from __future__ import annotations

from collections.abc import Sequence


class Roster:
    """The clients' places. A place stays with its client; a new client takes one of a client that has gone."""

    def __init__(self, places: int, first: Sequence[str] = ()) -> None:
        """Begin with clients that are known beforehand, in this order."""
        self._places = places
        self.names = list(first)

    def update(self, present: Sequence[str]) -> list[str]:
        """Give new clients among those ``present`` a place; return all names by place."""
        for name in present:
            if name not in self.names:
                self._seat(name, present)
        return self.names

    def _seat(self, name: str, present: Sequence[str]) -> None:
        gone = next((place for place, old in enumerate(self.names) if old not in present), None)
        if len(self.names) < self._places or gone is None:
            self.names.append(name)
        else:
            self.names[gone] = name
