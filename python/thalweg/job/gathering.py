"""A node that is the top for a round takes the sums of the others; any node can be, so each has both ends."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from thalweg import _core
from thalweg.job.farewell import farewell

# A round's sums: their head, and their cells.
Sums = tuple[bytes, "_core.Arena"]


class Gathering:
    """A node among the others. ``sums`` gives those of its own last round, None without any."""

    def __init__(
        self,
        name: str,
        model: _core.Arena,
        *,
        listen: str,
        server: Mapping[str, Any],
        member: Mapping[str, Any],
        top: Mapping[str, Any],
        sums: Callable[[], Sums | None],
    ) -> None:
        """Listen for other nodes at ``listen``. ``server``, ``member`` and ``top`` are the core's options of each."""
        self._name, self._model, self._member, self._sums = name, model, member, sums
        self._top = _core.Top(model, json.dumps(top))
        self._server = _core.TaskServer(listen, json.dumps(server))
        self._leaders: dict[str, _core.TaskClient] = {}

    @property
    def address(self) -> str:
        """Where other nodes connect to."""
        return self._server.address

    def lead(self, counted: int) -> dict[str, Any]:
        """Be the top from now on, with the sums of one's own round. Raises CoreError if they cannot be added."""
        self._top.forget()
        own = self._sums()
        if own is None:
            return {"refused": "it has no sums"}
        self._top.merge(*own, counted)
        return {}

    def give(self, leader: str) -> dict[str, Any]:
        """Let the node at this address take the sums of one's own round, now and in later rounds."""
        if leader not in self._leaders:
            client = _core.TaskClient(leader, self._name, json.dumps(self._member))
            self._leaders[leader] = client
            threading.Thread(target=self._serve, args=(leader, client), daemon=True).start()
        return {}

    def take(self, name: str, counted: int) -> dict[str, Any]:
        """Take the sums of another node, of so many updates. Returns why they were refused, if they were."""
        number = self._server.open(b"{}", None, 0, [name], None, None, None)
        try:
            told = self._server.next_reply(number, None)
            if told is None:
                return {"refused": "nothing came"}
            _, state, reason, head, _, _, cells, transfers = told
            between = {"between": json.loads(transfers)}
            if state != "done" or cells is None:
                return {"refused": reason or "it has no sums", **between}
            try:
                self._top.merge(base64.b64decode(json.loads(head)["sums"]), cells, counted)
            except _core.CoreError as error:
                return {"refused": str(error), **between}
            return between
        finally:
            self._server.release(number)

    def finish(self) -> tuple[dict[str, Any], _core.Arena]:
        """Take the mean; return what the fold says, when that was, and the model. Raises CoreError if there is none."""
        fold = json.loads(self._top.finish())
        return {"fold": fold, "done": time.time()}, self._model

    def close(self, reason: str) -> None:
        """Leave all other nodes. Idempotent."""
        for client in self._leaders.values():
            client.close(reason)
        self._server.close(reason)

    def _serve(self, leader: str, client: _core.TaskClient) -> None:
        """Answer a leader with the sums of the last round, until it ends."""
        try:
            with farewell(client, "the node is done"):
                client.join()
                while (event := client.next()) is not None:
                    if event[0] == "task":
                        self._answer(client, event[1])
        except _core.CoreError:  # the leader has ended; whoever leads next has another address
            self._leaders.pop(leader, None)

    def _answer(self, client: _core.TaskClient, number: int) -> None:
        own = self._sums()
        if own is None:
            client.refuse(number, "it has no sums")
            return
        head, cells = own
        client.answer(number, json.dumps({"sums": base64.b64encode(head).decode()}).encode(), cells, 1.0)
