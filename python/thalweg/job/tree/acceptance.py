"""Decides which nodes' parts of a round the root of a tree accepts, and how many lines of a node's log it keeps.

A node has a token of its own, and counts the updates of clients. The root therefore checks each client's own proof.
The client signs it for this job alone, and the node passes it on but cannot make one. A node can still lie about the
values of its own clients' updates, as any aggregator can.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from thalweg import _core
from thalweg.job.tree.messages import Proofs, Request
from thalweg.job.tree.tops import Node, Received
from thalweg.trees.answers import AnyAnswer
from thalweg.trees.merging import Part

# Maximum number of proofs in one request. A proof has about 400 bytes, and the head with all of them at most 1 MiB.
MOST_PROOFS: Final = 1000
# Maximum number of lines of a node's log that are kept in a round: for the node, and for each of its clients.
MOST_LINES: Final = 64
LINES_OF_A_CLIENT: Final = 4


class AskOne(Protocol):
    """Sends a request to a node and returns its answer."""

    def __call__(self, request: Request[AnyAnswer], node: Node) -> Received[AnyAnswer]: ...


@dataclass(frozen=True)
class Keys:
    """What clients' proofs are checked with: the ``issuer``, or else the ``token``, of this ``job``.

    With neither no client has to prove anything: the job is open to this machine.
    """

    issuer: str | None = None
    token: str | None = None
    job: int = 1


class Judge:
    """Checks nodes' parts in a round. It keeps which clients' updates count in the round, and at which node."""

    def __init__(self, keys: Keys, ask: AskOne) -> None:
        self._keys = keys
        self._ask = ask
        self._counted: dict[str, str] = {}
        self._lines: dict[str, int] = {}

    def begin(self) -> None:
        """Begin a round: forget which updates count, and how many lines nodes have sent."""
        self._counted.clear()
        self._lines.clear()

    def unproven(self, node: Node, clients: Sequence[str]) -> list[str]:
        """Ask a node for the missing proofs of these clients; return the clients that still have none."""
        if self._keys.issuer is None and self._keys.token is None:
            return []
        missing = [client for client in clients if client not in node.proven]
        for start in range(0, len(missing), MOST_PROOFS):
            requested = missing[start : start + MOST_PROOFS]
            received = self._ask(Proofs(requested), node)
            shown = {} if received.head is None else received.head.proofs
            node.proven |= {client for client in requested if client in shown and self._holds(client, shown[client])}
        return [client for client in missing if client not in node.proven]

    def why_not(self, part: Part, node: Node, number: int, others: Sequence[Node], *, placed: bool) -> str | None:
        """Return why a node's part in a round is refused; None if it is accepted, and then its updates count.

        ``placed``: the root placed the clients at its nodes, so a node may count only its own clients.
        """
        outcome = part.outcome
        if outcome is None:
            return part.reason
        if outcome.round != number:
            return f"its node {part.node} speaks of round {outcome.round}"
        names = [one.client for one in outcome.participants]
        if len(set(names)) < len(names):
            return f"its node {part.node} names a client twice"
        counting = [one.client for one in part.counting]
        why = self._others_client(counting, node, others)
        if why is None and (unproven := self.unproven(node, counting)):
            why = f"counts {unproven[0]}, and has no proof that it was there"
        if why is None and placed and (strangers := [client for client in counting if client not in node.clients]):
            why = f"counts {strangers[0]}, who is none of its clients"
        if why is not None:
            return f"its node {part.node} {why}"
        self._counted |= dict.fromkeys(counting, part.node)
        return None

    def _others_client(self, counting: Sequence[str], node: Node, others: Sequence[Node]) -> str | None:
        elsewhere = {client: other.name for other in others if other is not node for client in other.clients}
        for client in counting:
            if client in elsewhere:
                return f"counts {client}, who is a client of {elsewhere[client]}"
            if client in self._counted:
                return f"counts {client}, whose update counts at {self._counted[client]}"
        return None

    def lines(self, node: Node, notes: Sequence[str]) -> list[str]:
        """Return the lines of a node's log that the root keeps. When the limit is passed, one line says so."""
        most = MOST_LINES + LINES_OF_A_CLIENT * max(node.expected, len(node.clients))
        before = self._lines.get(node.name, 0)
        self._lines[node.name] = before + len(notes)
        kept = [f"{node.name}: {note}" for note in notes[: max(0, most - before)]]
        if before <= most < before + len(notes):
            kept.append(f"more of {node.name} is left out until the next round")
        return kept

    def _holds(self, client: str, shown: str) -> bool:
        try:
            proof, keys = base64.b64decode(shown, validate=True), self._keys
            return _core.pki_check_forwarded_proof(keys.issuer, keys.token, keys.job, proof) == client
        except (_core.CoreError, ValueError):
            return False
