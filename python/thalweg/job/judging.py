"""Which parts of a round the root of a tree accepts from its nodes, and how many lines of their logs it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from thalweg.job.tops import Node
from thalweg.trees.merging import Part

# Most lines of a node's log between the begins of two rounds, and more for each of its clients.
MOST_LINES: Final = 64
LINES_OF_A_CLIENT: Final = 4


class Judge:
    """Knows whose updates count in this round, and at which node each was counted."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self._counted: dict[str, str] = {}
        self._lines: dict[str, int] = {}

    def begin(self) -> None:
        """Begin a round: no update counts yet, and nodes may write lines again."""
        self._counted.clear()
        self._lines.clear()

    def why_not(self, part: Part, node: Node, number: int, others: Sequence[Node], *, known: bool) -> str | None:
        """Return why a node's part in a round is refused; or None, and then its updates count.

        ``known``: the root placed the clients at its nodes, so a node may count no others.
        """
        outcome = part.outcome or {}
        if outcome["round"] != number:
            return f"its node {part.node} speaks of round {outcome['round']}"
        names = [one["client"] for one in outcome["participants"]]
        if len(set(names)) < len(names):
            return f"its node {part.node} names a client twice"
        elsewhere = {client: other.name for other in others if other is not node for client in other.clients}
        counting = [one["client"] for one in part.counting]
        for client in counting:
            if client in elsewhere:
                return f"its node {part.node} counts {client}, who is a client of {elsewhere[client]}"
            if client in self._counted:
                return f"its node {part.node} counts {client}, whose update counts at {self._counted[client]}"
            if known and client not in node.clients:
                return f"its node {part.node} counts {client}, who is none of its clients"
        self._counted |= dict.fromkeys(counting, part.node)
        return None

    def lines(self, node: Node, notes: Sequence[str]) -> list[str]:
        """Return the lines of a node's log that the root keeps; beyond the bound, one line that says so."""
        most = MOST_LINES + LINES_OF_A_CLIENT * max(node.expected, len(node.clients))
        said = self._lines.get(node.name, 0)
        self._lines[node.name] = said + len(notes)
        kept = [f"{node.name}: {note}" for note in notes[: max(0, most - said)]]
        if said <= most < said + len(notes):
            kept.append(f"more of {node.name} is left out until the next round")
        return kept
