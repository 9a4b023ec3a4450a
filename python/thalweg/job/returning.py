"""Nodes of a tree that were lost and come back: started again or by themselves, opened anew, in the next round."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from thalweg import _core
from thalweg.errors import RoundError
from thalweg.job.asking import SLICE
from thalweg.job.tops import Node

# Seconds that a node may take from its start until it is open, and its clients until they are there again.
NODE_SECONDS: Final = 30.0
CLIENT_SECONDS: Final = 10.0


class Root(Protocol):
    """What has to be done at the root to have a node back."""

    def is_connected(self, node: Node, seconds: float) -> bool:
        """Return whether a node is, waiting for it at most so long."""

    def is_open(self, node: Node) -> bool:
        """Return whether a node that is connected still listens for its clients, and has state."""

    def open_node(self, node: Node) -> int:
        """Have a node listen for its clients; return for how many. Raises RoundError if it cannot."""

    def await_clients(self, nodes: Sequence[Node], seconds: float) -> None:
        """Wait until the clients of nodes are there, at most so long."""


class Returning:
    """Brings nodes back. They count as lost until the next round begins."""

    def __init__(self, root: Root) -> None:
        """Begin with nobody on the way. ``restart`` starts a node's process again where it listened; False if not."""
        self._root = root
        self.restart: Callable[[Node], bool] = lambda _: False
        self._coming: dict[str, threading.Thread] = {}
        self._back: set[str] = set()

    def look(self, nodes: Sequence[Node]) -> None:
        """Begin to bring back those that are lost. Their processes end with the thread that calls this."""
        for node in nodes:
            known = node.name in self._coming or node.name in self._back
            with suppress(_core.CoreError):  # the job is ending
                if node.gone is not None and not known and (self._root.is_connected(node, 0) or self.restart(node)):
                    coming = threading.Thread(target=self._bring, args=(node,), daemon=True)
                    self._coming[node.name] = coming
                    coming.start()

    def lost(self, node: Node) -> None:
        """Hear that a node has been lost, maybe on its way back."""
        self._coming.pop(node.name, None)
        self._back.discard(node.name)

    def settle(self, nodes: Sequence[Node], look: Callable[[], None]) -> None:
        """Before a round, wait for those that are on their way, and for their clients."""
        self.look(nodes)
        while self._coming:
            for coming in list(self._coming.values()):
                coming.join(SLICE)
            look()
        back = [node for node in nodes if node.name in self._back]
        self._back.clear()
        for node in back:
            node.gone = node.has = None
        self._root.await_clients(back, CLIENT_SECONDS)

    def _bring(self, node: Node) -> None:
        until = time.monotonic() + NODE_SECONDS
        with suppress(_core.CoreError, RoundError):  # it is lost again, or the job is ending
            while not self._root.is_connected(node, SLICE):
                if time.monotonic() > until or node.name not in self._coming:
                    break
            else:
                if not self._root.is_open(node):
                    self._root.open_node(node)
                if node.name in self._coming:
                    self._back.add(node.name)
        self._coming.pop(node.name, None)
