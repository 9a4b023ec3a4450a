"""A node's links with the other nodes of its tree: each listens for the others, and joins those the root names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import TypeAlias

from thalweg import _core, bounded_json, wire
from thalweg.job.common import server_reports
from thalweg.job.common.farewell import farewell, reason
from thalweg.job.common.resent import counted
from thalweg.job.common.server_reports import ResentCounts
from thalweg.job.tree.messages import Message
from thalweg.job.tree.requests import Reply, ask
from thalweg.plan.options import CoreOptions
from thalweg.trees.answers import Form
from thalweg.wire import Table

# A node's answer: a head, and perhaps an arena.
Answer: TypeAlias = "tuple[Form, _core.Arena | None]"
# Answers another node's request, whose head is a table, with perhaps an arena.
AnswerOthers: TypeAlias = "Callable[[Table, _core.Arena | None], Answer]"


class Others:
    """A node's links with other nodes. Each link's thread calls ``answer`` with the requests of the other node."""

    def __init__(
        self,
        name: str,
        *,
        listen: str,
        server: CoreOptions,
        member: CoreOptions,
        answer: AnswerOthers,
    ) -> None:
        """Listen for other nodes at ``listen``. ``server`` and ``member`` are the core's options for a link's ends."""
        self._name, self._member, self._answer_of = name, member, answer
        self._server = _core.TaskServer(listen, wire.encode(server))
        self._joined: dict[str, _core.TaskClient] = {}
        self._versions = count(1)

    @property
    def address(self) -> str:
        """The address to which other nodes connect."""
        return self._server.address

    def join(self, address: str) -> None:
        """Connect to the node at this address and answer its requests from now on. Idempotent."""
        if address not in self._joined:
            client = _core.TaskClient(address, self._name, wire.encode(self._member))
            self._joined[address] = client
            threading.Thread(target=self._serve, args=(address, client), daemon=True).start()

    def ask(self, head: Message, names: Sequence[str], tensors: _core.Arena | None = None) -> Iterator[Reply]:
        """Send a request to other nodes, which may still have to join; yield the answers as they arrive."""
        yield from ask(self._server, head, names, model=None if tensors is None else (tensors, next(self._versions)))

    def forget(self, name: str, why: str) -> None:
        """Stop waiting for a node that is gone."""
        self._server.forget(name, why)

    def resent(self) -> list[ResentCounts]:
        """Return the counts of segments that were sent again on the links of nodes that joined this node, if any did.

        The other nodes count the links on which this node joined them.
        """
        if not server_reports.resent(self._server, 0.0):
            return []
        return [counted(self._server, lambda: server_reports.departed(self._server), ())]

    def close(self, why: str) -> None:
        """Leave all other nodes. Idempotent."""
        for client in list(self._joined.values()):
            client.close(why)
        self._server.close(why)

    def _serve(self, address: str, client: _core.TaskClient) -> None:
        """Answer another node's requests until that node ends."""
        try:
            with farewell(client, "the node is done"):
                client.join()
                while (event := client.next()) is not None:
                    what, number, head, _, tensors, _, _ = event
                    if what == "task":
                        self._answer(client, number, head, tensors)
        except _core.CoreError:  # the other node has ended; one that takes its place has another address
            self._joined.pop(address, None)

    def _answer(self, client: _core.TaskClient, number: int, head: bytes, tensors: _core.Arena | None) -> None:
        try:
            answer, own = self._answer_of(bounded_json.read_object(head), tensors)
        except Exception as error:  # noqa: BLE001 - whoever asked is told
            client.refuse(number, reason(error))
            return
        client.answer(number, wire.encode(answer).encode(), own, 1.0)
