"""``Roster``: gives each client a place. The place decides its part of the data."""

from __future__ import annotations

from collections.abc import Sequence


class Roster:
    """The clients' places. A client keeps its place. Once all are taken, a new client gets that of an absent one."""

    def __init__(self, places: int, first: Sequence[str] = ()) -> None:
        """Give the first places to the clients ``first``, in this order."""
        self._places = places
        self.names = list(first)

    def update(self, present: Sequence[str]) -> list[str]:
        """Give each new client among those ``present`` a place; return all names in the order of their places."""
        for name in present:
            if name not in self.names:
                self._place(name, present)
        return self.names

    def _place(self, name: str, present: Sequence[str]) -> None:
        free = next((place for place, old in enumerate(self.names) if old not in present), None)
        if len(self.names) < self._places or free is None:
            self.names.append(name)
        else:
            self.names[free] = name
