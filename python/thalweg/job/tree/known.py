"""A node of a tree as the root knows it, and a node's answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic

from thalweg import _core
from thalweg.trees import answers
from thalweg.trees.answers import AnyAnswer, Transfer


@dataclass
class Node:
    """A node as the root knows it: its clients, its addresses, and the state from its last answer."""

    name: str
    clients: Sequence[str]
    address: str = ""
    # The address at which other nodes' clients reach it; empty if it is not known.
    reached: str = ""
    # The address to which other nodes connect.
    peers: str = ""
    state: answers.State | None = None
    # How the node was lost, such as "is gone: killed by signal 9"; None while it is not lost.
    loss: str | None = None
    # The version of the model whose parts the node has received from other nodes.
    has: int | None = None
    # How many clients it waits for.
    expected: int = 0
    # Clients whose proofs it has passed on.
    proven: set[str] = field(default_factory=set)
    # Clients that it has named without a proof; the log says so once.
    unproven: set[str] = field(default_factory=set)
    # Whether all its clients have moved to other nodes, after it was lost.
    is_empty: bool = False

    @property
    def connected(self) -> Sequence[str]:
        """The clients that were connected to it at its last answer."""
        return () if self.state is None else self.state.clients

    def table(self, version: int) -> dict[str, object]:
        """Return the node in the form that the core's round takes. ``version``: of the round's model."""
        return {
            "name": self.name,
            "clients": list(self.clients),
            "connected": list(self.connected),
            "peers": self.peers,
            "loss": self.loss,
            "has_model": self.has == version,
            "is_empty": self.is_empty,
        }

    @property
    def reason(self) -> str:
        """Why the node's clients take no part in a round; empty while the node is not lost."""
        return "" if self.loss is None else f"its node {self.name} {self.loss}"


@dataclass(frozen=True)
class Received(Generic[AnyAnswer]):
    """A node's answer. If ``head`` is None there is none, and ``reason`` says why.

    ``is_lost``: the node was lost. ``is_unopened``: it is not open, because it was started anew, or waits for nodes
    below it.
    """

    node: Node
    head: AnyAnswer | None
    tensors: _core.Arena | None
    reason: str
    between: tuple[Transfer, ...]
    is_lost: bool = False
    is_unopened: bool = False
