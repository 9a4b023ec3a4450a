"""Federated averaging in a few lines: ``Server``, ``Client`` and ``fedavg`` around an app of one's own.

An app is any object with ``model()``, which returns a ``torch.nn.Module`` or a dict of NumPy arrays, with
``train(model, data, config) -> (samples, metrics)`` for clients, and ``evaluate(model, data) -> metrics`` for whoever
evaluates.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from thalweg import _core
from thalweg.binding import bind
from thalweg.watching import Watch

Metrics = dict[str, Any]
# Without any handler Python prints warnings to standard error.
_log = logging.getLogger("thalweg")


class App(Protocol):
    """What is trained. ``evaluate(model, data)`` is only needed where ``fedavg`` is given data.

    A model is a ``torch.nn.Module``, or a dict of NumPy arrays.
    """

    def model(self) -> Any:
        """Return a new model; every party's has the same shapes, the server's values are the first global ones."""

    def train(self, model: Any, data: Any, config: Mapping[str, Any]) -> tuple[int, Metrics]:
        """Train in place; return the number of samples (the update's weight) and metrics for the record."""


@dataclass(frozen=True)
class Round:
    """One round: its number, what ``evaluate`` says, and the core's outcome (docs/reference/outcome.md)."""

    number: int
    metrics: Metrics
    outcome: Mapping[str, Any]

    @property
    def complete(self) -> bool:
        """Whether every client expected is in the mean."""
        return bool(self.outcome["complete"])

    @property
    def participants(self) -> list[str]:
        """Names of the clients whose whole update is in the mean."""
        return [part["client"] for part in self.outcome["participants"] if part["state"] == "whole"]


class Server:
    """A server that owns the global model. Use it as a context manager, or close it."""

    def __init__(
        self,
        app: App,
        *,
        clients: int,
        choose: float | None = None,
        listen: str = "tcp://127.0.0.1:0",
        enough: int | None = None,
        deadline: float | None = None,
        partial: str = "discard",
        deterministic: bool = False,
        pki: Path | str | None = None,
    ) -> None:
        """Listen at ``listen`` for ``clients`` clients.

        Each round takes all of them, or ``choose`` by lot: a number, or a share as 0.125.
        A round ends complete, or after ``deadline`` seconds with at least ``enough`` whole updates. ``pki`` is a
        folder of ``thalweg pki init``; beyond loopback there must be one. Raises PlanError, LinkError, CoreError.
        """
        from thalweg import links
        from thalweg.plan import Plan

        job = {"clients": clients, "choose": choose, "enough": enough, "deadline": deadline}
        table = {
            "job": {key: value for key, value in job.items() if value is not None},
            "transport": {"url": listen},
            "aggregation": {"partial": partial, "deterministic": deterministic},
            "security": {} if pki is None else {"pki": str(pki)},
        }
        plan = Plan.of(table, "the server's arguments")
        self.app, self.clients = app, clients
        self._bound = bind(app.model())
        self._watch = Watch(self._bound, _log.warning)
        self.model, self.arena = self._bound.model, self._bound.arena
        options = links.server_options(plan, links.server_trust(plan, listen))
        self._core = _core.Server(self.arena.core, listen, json.dumps(options))
        self._number = 0

    @property
    def address(self) -> str:
        """The URL that clients connect to, with the port that the system chose."""
        return self._core.address

    def wait(self, clients: int | None = None, timeout: float | None = None) -> int:
        """Wait until ``clients`` (default all) are connected or ``timeout`` seconds are over; return how many are."""
        return self._core.wait(self.clients if clients is None else clients, timeout)

    def round(self, config: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Run the next round and return the core's outcome; ``config`` reaches every ``train``.

        Clients start from the values that ``model`` has now, and it has their mean afterwards. Raises CoreError,
        and ModelError if ``model`` has got other tensors.
        """
        self._bound.collect("the last round")
        self._number += 1
        text = json.dumps({"round": self._number, **(config or {})})
        outcome: Mapping[str, Any] = json.loads(self._core.round(self._number, text, None))
        self._bound.restore("the round")
        return outcome

    def evaluate(self, data: Any) -> Metrics:
        """Return what the app says of the global model on ``data``. Raises ModelError, and what the app raises."""
        work: Callable[[Any], Metrics] = lambda model: dict(self.app.evaluate(model, data))  # type: ignore[attr-defined]  # noqa: E731
        return self._watch.evaluate(work)

    def close(self, reason: str = "the job is over") -> None:
        """Tell every client that the job is over, and stop. Idempotent."""
        self._core.close(reason)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("the job is over" if error is None else "the server has failed")


class Client:
    """A client that trains its app on its own data, and comes back by itself when the link breaks."""

    def __init__(
        self,
        app: App,
        url: str,
        *,
        name: str,
        data: Any = None,
        token_file: Path | str | None = None,
        patience: float = 30.0,
    ) -> None:
        """Begin to connect to the server at ``url``; ``patience`` is how many seconds to go on trying.

        ``token_file`` is what ``thalweg pki issue`` made. Raises LinkError, PlanError, ModelError.
        """
        from thalweg import links, pki

        token = None if token_file is None else pki.read_token(Path(token_file))
        trust = links.remote_trust(url, token, None, None, "auto")
        options = {"transport": {"tls": trust.get("tls")}, "token": trust.get("token"), "patience": patience}
        self.app, self.name, self.data = app, name, data
        self._bound = bind(app.model())
        self.model, self.arena = self._bound.model, self._bound.arena
        self._core = _core.Client(url, name, json.dumps(options), self.arena.core)

    def run(self) -> list[dict[str, Any]]:
        """Take part until the job is done; return ``{"round", "samples", "status"}`` of each round.

        Raises CoreError if the server is gone for good or does not let the client in, and what training raises.
        """
        from thalweg.participant import take_part
        from thalweg.parties import AppClient

        def note(text: str) -> None:
            _log.warning("%s: %s", self.name, text)

        party = AppClient(self.app, self._bound, self.data, note)
        try:
            return take_part(self._core, lambda _config, _arena: party, lambda _note: None)
        finally:
            self.close()

    def close(self, reason: str = "the client ends") -> None:
        """Leave for good. Idempotent."""
        self._core.close(reason)


def fedavg(
    server: Server, rounds: int, *, data: Any = None, config: Mapping[str, Any] | None = None
) -> Iterator[Round]:
    """Run rounds of federated averaging (weighted by samples) and yield each as it ends.

    Waits for all clients first. With ``data``, the app evaluates the global model on it after each round. Raises
    CoreError of kind ``round`` if too few updates come.
    """
    server.wait()
    for _ in range(rounds):
        outcome = server.round(config)
        metrics = {} if data is None else server.evaluate(data)
        yield Round(int(outcome["round"]), metrics, outcome)
