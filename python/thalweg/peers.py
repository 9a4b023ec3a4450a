"""DiLoCo: a plain PyTorch loop that meets its peers at a server once every many steps.

``diloco`` joins a job whose server runs ``thalweg.rounds`` with an outer optimizer, usually SGD with Nesterov's
momentum. After ``every`` steps of the inner optimizer the peer sends its model, and goes on from the server's next one
(Douillard et al. 2023, algorithm 1). The inner optimizer keeps its state.
"""

from __future__ import annotations

import logging
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from thalweg import _core, wire
from thalweg.apps.metrics import offered
from thalweg.errors import PlanError, leaving
from thalweg.outcome import ClientRound
from thalweg.tensors.binding import bind

if TYPE_CHECKING:
    import torch

_log = logging.getLogger("thalweg")


class Peer:
    """A peer of a DiLoCo job, as ``diloco`` returns it. Use it as a context manager, or close it."""

    def __init__(
        self, model: torch.nn.Module, inner: torch.optim.Optimizer, core: _core.Client, bound: Any, every: int
    ) -> None:
        self.model, self.every = model, every
        #: Whether the job is over. Steps then change the model of this process alone.
        self.over = False
        #: Number of steps of the inner optimizer since the peer joined.
        self.steps = 0
        #: Number of the round that goes on.
        self.round = 0
        #: The rounds so far, each with what became of this peer's model.
        self.rounds: list[ClientRound] = []
        #: Metrics that go to the server with the next model, such as the loss.
        self.metrics: dict[str, Any] = {}
        self._core, self._bound = core, bound
        self._hook = inner.register_step_post_hook(self._stepped)
        self._begin()

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received on the current connection."""
        return self._core.traffic

    def _begin(self) -> None:
        """Wait for the server's model, and train it from now on."""
        task = self._core.next()
        if task is None:
            self._finish()
            return
        self.round = task[0]
        self._bound.restore("the round")

    def _stepped(self, *_: object) -> None:
        """Count a step; after ``every`` steps send the model and wait for the next one."""
        self.steps += 1
        if self.steps % self.every:
            return
        self._bound.collect("the steps")
        status = self._submit(offered(self.metrics, {}))
        self.rounds.append({"round": self.round, "samples": 1.0, "status": status})
        self.metrics = {}
        if status == "done":
            self._finish()
        else:
            self._begin()

    def _submit(self, metrics: str) -> str:
        try:
            return self._core.submit(self.round, 1.0, metrics)
        except _core.CoreError as error:
            if error.kind != "rejected":
                raise
            _log.warning("round %d: %s", self.round, error)
            return "rejected"

    def _finish(self) -> None:
        self.over = True
        self._hook.remove()

    def close(self, reason: str = "the peer ends") -> None:
        """Leave the job for good, and tell the server the ``reason``. Others go on. Idempotent."""
        self._finish()
        self._core.close(reason)

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with leaving(error):
            self.close("the peer ends" if error is None else f"{type(error).__name__}: {error}")


def diloco(
    model: torch.nn.Module,
    inner: torch.optim.Optimizer,
    url: str,
    *,
    every: int,
    name: str,
    tensors: str | list[str] | None = None,
    token_file: Path | str | None = None,
    timeout: float = 30.0,
) -> Peer:
    """Join the DiLoCo job of the server at ``url``, and return once ``model`` has the server's values.

    From then on each ``every``-th ``inner.step()`` sends the model to the server, and returns when the model has the
    values of the next round; ``peer.over`` says when the job is over. All peers count alike. The server's outer
    optimizer is the ``optimizer`` of ``thalweg.rounds``, and ``Server(enough=, deadline=)`` says for whom a round
    waits. No two peers of a job have the same ``name``. ``tensors``, ``token_file`` and ``timeout`` are as for
    ``thalweg.Client``.

    Raises PlanError for ``every`` below 1, LinkError, ModelError; and CoreError, also from ``inner.step()``, if the
    server refuses the peer or is gone for good.
    """
    from thalweg.transports import links, pki, registry

    if every < 1:
        raise PlanError(f"every is {every}", "Give the number of inner steps between two meetings, such as 100")
    token = None if token_file is None else pki.read_token(Path(token_file))
    trust = links.remote_trust(url, token, None, None, "auto")
    options = {"transport": {"tls": trust.tls}, "token": trust.token, "timeout": timeout}
    bound = bind(model, tensors, shared=registry.lends(url))
    core = _core.Client(url, name, wire.encode(options), bound.arena.core)
    try:
        core.join()
        return Peer(model, inner, core, bound, every)
    except BaseException:
        core.close("the peer cannot begin")
        raise
