"""What a tree's root tells nodes after a round: which updates count. Only then do clients learn it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from thalweg.job.tree.known import Node
from thalweg.job.tree.messages import Confirm
from thalweg.trees.merging import Part


class Fates:
    """What became of the nodes' parts in the last round. A node may have several parts in a round."""

    def __init__(self) -> None:
        self._begin(0)

    def _begin(self, number: int) -> None:
        self._number = number
        # The clients of parts that do not count, by node; and the nodes that have a part that counts.
        self._left_out: dict[str, set[str]] = {}
        self._counting: set[str] = set()

    def add(self, number: int, parts: Sequence[Part]) -> None:
        """Note the parts of a round, or further ones."""
        if number != self._number:
            self._begin(number)
        for part in parts:
            if part.outcome is None:
                self._left_out.setdefault(part.node, set()).update(part.clients)
            elif part.counted:
                self._counting.add(part.node)

    def requests(
        self, number: int, left_out: AbstractSet[str], nodes: Sequence[Node], *, counts: bool
    ) -> Iterator[tuple[Confirm, Sequence[Node]]]:
        """Return what to tell which of the ``nodes``. ``counts`` and ``left_out``: the word of this node's parent."""
        alike = []
        for node in nodes:
            own = self._left_out.get(node.name) if number == self._number else None
            if own is None:
                alike.append(node)
            else:
                yield Confirm(number, counts and node.name in self._counting, sorted(left_out | own)), [node]
        if alike:
            yield Confirm(number, counts, sorted(left_out)), alike
