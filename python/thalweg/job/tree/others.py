"""A node's links with the other nodes of its tree: each listens for the others, and joins those that it is told of."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from thalweg import _core, bounded_json
from thalweg.job.common.farewell import farewell, reason
from thalweg.job.common.resent import Counts, counted
from thalweg.job.tree.requests import Reply, ask
from thalweg.wire import Table

# What a node answers another one: a head, and maybe an arena.
Answer = tuple[dict[str, Any], "_core.Arena | None"]


class Others:
    """A node among the others. ``answer`` is called, in a thread of each link, with what another node asks."""

    def __init__(
        self,
        name: str,
        *,
        listen: str,
        server: Table,
        member: Table,
        answer: Callable[[Mapping[str, Any], _core.Arena | None], Answer],
    ) -> None:
        """Listen for other nodes at ``listen``. ``server`` and ``member`` are the core's options of both ends."""
        self._name, self._member, self._answer_of = name, member, answer
        self._server = _core.TaskServer(listen, json.dumps(server))
        self._joined: dict[str, _core.TaskClient] = {}
        self._versions = count(1)

    @property
    def address(self) -> str:
        """Where other nodes connect to."""
        return self._server.address

    def join(self, address: str) -> None:
        """Answer what the node at this address asks, now and in later rounds. Idempotent."""
        if address not in self._joined:
            client = _core.TaskClient(address, self._name, json.dumps(self._member))
            self._joined[address] = client
            threading.Thread(target=self._serve, args=(address, client), daemon=True).start()

    def ask(self, head: Table, names: Sequence[str], tensors: _core.Arena | None = None) -> Iterator[Reply]:
        """Ask other nodes, which have joined or will, something; yield what each answers, as answers come."""
        yield from ask(self._server, head, names, model=None if tensors is None else (tensors, next(self._versions)))

    def forget(self, name: str, why: str) -> None:
        """Wait no more for a node that is gone."""
        self._server.forget(name, why)

    def resent(self) -> list[Counts]:
        """Return what was sent again on links of nodes that joined this one, if any did.

        What this node sent to others, they count.
        """
        if not json.loads(self._server.resent(0.0)):
            return []
        return [counted(self._server, lambda: json.loads(self._server.departed()), ())]

    def close(self, why: str) -> None:
        """Leave all other nodes. Idempotent."""
        for client in list(self._joined.values()):
            client.close(why)
        self._server.close(why)

    def _serve(self, address: str, client: _core.TaskClient) -> None:
        """Answer a node until it ends."""
        try:
            with farewell(client, "the node is done"):
                client.join()
                while (event := client.next()) is not None:
                    what, number, head, _, tensors, _, _ = event
                    if what == "task":
                        self._answer(client, number, head, tensors)
        except _core.CoreError:  # it has ended; whoever takes its place has another address
            self._joined.pop(address, None)

    def _answer(self, client: _core.TaskClient, number: int, head: bytes, tensors: _core.Arena | None) -> None:
        try:
            told, own = self._answer_of(bounded_json.read_object(head), tensors)
        except Exception as error:  # noqa: BLE001 - whoever asked is told
            client.refuse(number, reason(error))
            return
        client.answer(number, json.dumps(told).encode(), own, 1.0)
