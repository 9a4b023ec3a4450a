"""The party of a node on a graph: it trains its model as a client does, and evaluates and sketches it."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from thalweg import apps, models
from thalweg.apps.received_config import ReceivedConfig
from thalweg.graphs import measures
from thalweg.job.common.parties import AppClient, Metrics, Payload, Trainer, bytes_of, known_app, parameters_of
from thalweg.tensors.arena import Arena
from thalweg.tensors.watching import Note, Watch, ignore

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from thalweg import _core
    from thalweg.plan import Plan
    from thalweg.tensors.binding import Binding


class Peer:
    """A node's model in an arena, with its training and its evaluation."""

    def __init__(
        self, arena: _core.Arena, party: Trainer, evaluate: Callable[[], Metrics], *, parameters: int, seed: int
    ) -> None:
        """Keep the model. ``seed`` is the seed of the sketches, which must be the same at all nodes."""
        self.arena, self.parameters = arena, parameters
        self._party, self._evaluate, self._seed = party, evaluate, seed
        self._tensors = Arena(arena)
        self._kinds = {name: kind for name, kind, _, _ in arena.layout.tensors}

    def train(self, config: ReceivedConfig) -> tuple[float, Metrics]:
        """Train the model in the arena in place; return (samples, metrics)."""
        return self._party.train(config)

    def evaluate(self) -> Metrics:
        """Return metrics of the model in the arena, such as ``accuracy`` and ``loss``, or nothing."""
        return self._evaluate()

    def sketch(self) -> NDArray[np.float64]:
        """Return a sketch of the model, shape (64,). The nodes' disagreement is estimated from their sketches."""
        return measures.sketch(measures.floats(self._tensors, self._kinds), self._seed)

    def checksum(self) -> str:
        """Return the SHA-256 of the arena's bytes, in hex."""
        return sha256(bytes_of(self.arena)).hexdigest()


def peer_of_app(
    app: Any,
    bound: Binding,
    data: Any,
    *,
    seed: int,
    part: apps.Part | None = None,
    test: Any = None,
    note: Note = ignore,
) -> Peer:
    """Return the peer of an app with its bound model. ``test`` is the test data; None: the peer never evaluates."""
    watch = Watch(bound, note)

    def evaluate() -> Metrics:
        if test is None:
            return {}
        return watch.evaluate(lambda model: apps.ask(lambda: dict(app.evaluate(model, test)), "evaluate()"))

    party = AppClient(app, bound, data, part=part, note=note)
    return Peer(bound.arena.core, party, evaluate, parameters=parameters_of(bound.model), seed=seed)


def peer_of(plan: Plan, name: str, note: Note = ignore) -> Peer:
    """Return the peer of a plan's node called ``name``. The plan's seed gives all nodes the same initial model.

    Raises PlanError, DataError, ModelError, AppError.
    """
    seed, place = plan.job.seed, plan.members.index(name)
    spec = models.payload_of(plan.model.name) if plan.app is None else None
    if spec is not None:
        payload = Payload.of(spec, seed)
        return Peer(payload.arena, payload, payload.evaluate, parameters=payload.parameters, seed=seed)
    from thalweg.tensors.binding import bind

    part = None
    if plan.app is not None:
        app = apps.load(plan.app.object, plan.app.options)
        model = apps.model_of(app, seed)
        part = apps.Part(name, place, plan.job.clients, seed)
        data = apps.client_data(app, part)
    else:
        app = known_app(plan, place)
        model, data = app.model(), app.train_data()
    test = None
    if plan.job.test_every != 0 and apps.evaluates(app):
        test = apps.ask(app.test_data, "test_data()")
    bound = bind(model, plan.model.tensors or getattr(app, "tensors", None))
    note(bound.summary())
    return peer_of_app(app, bound, data, seed=seed, part=part, test=test, note=note)
