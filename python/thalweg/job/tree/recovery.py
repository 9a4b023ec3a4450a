"""Recovers lost nodes of a tree: brings a node back and opens it again, or moves its clients to other nodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from thalweg import _core
from thalweg.errors import RoundError
from thalweg.job.tree.known import Node
from thalweg.machine.waiting import WAIT_SLICE

# A node that is started again may take so many times as long as the slowest node took when the job began.
STARTS: Final = 3.0
CLIENTS_ARE_LOST: Final = "{} does not come back. Its clients are lost, because clients below middle nodes do not move"


class Root(Protocol):
    """The root's methods that ``NodeRecovery`` calls."""

    def is_connected(self, node: Node, seconds: float) -> bool:
        """Return whether a node is connected, after waiting for it at most ``seconds``."""

    def reopen(self, node: Node) -> bool:
        """Have a connected node listen again if it does not; return whether it listens.

        Raises RoundError if the node cannot listen.
        """

    def tell_homes(self) -> None:
        """Tell all connected nodes at which node each client belongs."""

    def move_clients(self, node: Node) -> list[Node]:
        """Move the clients of a lost node to other nodes; return those nodes."""

    def await_clients(self, nodes: Sequence[Node], seconds: float) -> None:
        """Wait at most ``seconds`` until the clients of these nodes are connected."""

    @property
    def can_move_clients(self) -> bool:
        """Whether clients of a lost node may go on at another one."""

    def note(self, text: str) -> None:
        """Add a line to the root's notes."""


class NodeRecovery:
    """Brings nodes back. They count as lost until the next round begins."""

    def __init__(self, root: Root, grace: float) -> None:
        """Begin with no lost node. ``grace``: seconds that a lost client may take to come back.

        The attributes decide how long a lost node is awaited. ``slowest_start``: how many seconds the nodes took until
        all were open. A node that is started again may take ``STARTS`` times as long, or ``grace`` if that is longer.

        ``restart`` starts a lost node's process again and returns whether it did. ``is_over`` returns whether nobody
        will start the node again. Otherwise the node is given up ``away`` seconds after it was first missed.
        ``look_below`` is called as often as ``look``: it starts nodes below middle nodes again.
        """
        self._root, self._grace = root, grace
        self.slowest_start = 0.0
        self.restart: Callable[[Node], bool] = lambda _: False
        self.is_over: Callable[[Node], bool] = lambda _: False
        self.look_below: Callable[[], None] = lambda: None
        self.away = float("inf")
        self._coming: dict[str, threading.Thread] = {}
        self._back: set[str] = set()
        self._missed: dict[str, float] = {}
        # Nodes that were not back in time, and so are not awaited any more; and those whose clients are lost.
        self._late: set[str] = set()
        self._given_up: set[str] = set()
        # Nodes to which clients of lost nodes have moved since the last round.
        self._hosts: dict[str, Node] = {}

    def look(self, nodes: Sequence[Node]) -> None:
        """Begin to bring back the lost ones of ``nodes``, or to move their clients.

        The kernel kills a node's restarted process when the thread that called this ends.
        """
        self.look_below()
        for node in nodes:
            is_handled = node.name in self._coming or node.name in self._back
            with suppress(_core.CoreError):  # the job is ending
                if node.loss is None or is_handled or node.is_empty:
                    continue
                self._missed.setdefault(node.name, time.monotonic())
                if self._root.is_connected(node, 0) or self.restart(node):
                    self._begin(node, self._bring)
                elif self._is_gone(node):
                    self._give_up(node)

    def _give_up(self, node: Node) -> None:
        if self._root.can_move_clients:
            self._late.discard(node.name)  # a round waits for clients that move
            self._begin(node, self._move)
        elif node.name not in self._given_up:
            self._given_up.add(node.name)
            self._root.note(CLIENTS_ARE_LOST.format(node.name))

    def restart_while_awaited(self, node: Node) -> bool:
        """Restart a node that was lost before all nodes were open; return False once the node is given up."""
        self._missed.setdefault(node.name, time.monotonic())
        return self.restart(node) or not self._is_gone(node)

    def has_come(self, node: Node) -> None:
        """Note that a missed node has been opened."""
        self._missed.pop(node.name, None)
        self._late.discard(node.name)
        self._given_up.discard(node.name)

    @property
    def is_waiting(self) -> bool:
        """Whether some thread is moving clients, or bringing back a node that is not late."""
        return bool(self._awaited())

    def _awaited(self) -> list[threading.Thread]:
        return [coming for name, coming in list(self._coming.items()) if name not in self._late]

    def _is_gone(self, node: Node) -> bool:
        return self.is_over(node) or time.monotonic() - self._missed[node.name] >= self.away

    def lost(self, node: Node) -> None:
        """Note that a node has been lost, perhaps while it was being brought back."""
        self._coming.pop(node.name, None)
        self._back.discard(node.name)
        self._late.discard(node.name)

    def settle(self, nodes: Sequence[Node], look: Callable[[], None]) -> None:
        """Before a round, wait for the nodes that are being brought back, for their clients and for moved clients."""
        self.look(nodes)
        while awaited := self._awaited():
            for coming in awaited:
                coming.join(WAIT_SLICE)
            self.look_below()  # a middle node that comes back waits for the nodes below it
            look()
        back = [node for node in nodes if node.name in self._back]
        self._back -= {node.name for node in back}
        for node in back:
            node.loss = node.has = None
            self.has_come(node)
            self._root.note(f"{node.name} is back")
        if back:
            self._root.tell_homes()
        hosts, self._hosts = self._hosts, {}
        waiting = {node.name: node for node in (*back, *hosts.values()) if node.loss is None}
        self._root.await_clients(list(waiting.values()), self._grace)

    def _begin(self, node: Node, work: Callable[[Node], None]) -> None:
        coming = threading.Thread(target=work, args=(node,), daemon=True)
        self._coming[node.name] = coming
        coming.start()

    def _bring(self, node: Node) -> None:
        until = time.monotonic() + max(self._grace, STARTS * self.slowest_start)
        with suppress(_core.CoreError, RoundError):  # it is lost again, or the job is ending
            while not (self._root.is_connected(node, WAIT_SLICE) and self._root.reopen(node)):
                if node.name not in self._coming:
                    break
                if time.monotonic() > until:
                    self._late.add(node.name)
                    break
            else:
                if node.name in self._coming:
                    self._back.add(node.name)
        self._coming.pop(node.name, None)

    def _move(self, node: Node) -> None:
        with suppress(_core.CoreError, RoundError):  # the job is ending
            self._hosts |= {host.name: host for host in self._root.move_clients(node)}
        self._coming.pop(node.name, None)
