"""Checks clients' own proofs at the root of a tree. The core's round asks for them before it counts an update.

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
from thalweg.job.tree.known import Node, Received
from thalweg.job.tree.messages import Proofs, Request
from thalweg.trees.answers import AnyAnswer

# Maximum number of proofs in one request. A proof has about 400 bytes, and the head with all of them at most 1 MiB.
MOST_PROOFS: Final = 1000


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

    @property
    def are_set(self) -> bool:
        """Whether clients have to prove who they are."""
        return self.issuer is not None or self.token is not None


class ProofChecker:
    """Asks nodes for their clients' proofs, and checks these."""

    def __init__(self, keys: Keys, ask: AskOne) -> None:
        self.keys = keys
        self._ask = ask

    def unproven(self, node: Node, clients: Sequence[str]) -> list[str]:
        """Ask a node for the missing proofs of these clients; return the clients that still have none."""
        if not self.keys.are_set:
            return []
        missing = [client for client in clients if client not in node.proven]
        for start in range(0, len(missing), MOST_PROOFS):
            requested = missing[start : start + MOST_PROOFS]
            received = self._ask(Proofs(requested), node)
            shown = {} if received.head is None else received.head.proofs
            node.proven |= {client for client in requested if client in shown and self._holds(client, shown[client])}
        return [client for client in missing if client not in node.proven]

    def _holds(self, client: str, shown: str) -> bool:
        try:
            proof, keys = base64.b64decode(shown, validate=True), self.keys
            return _core.pki_check_forwarded_proof(keys.issuer, keys.token, keys.job, proof) == client
        except (_core.CoreError, ValueError):
            return False
