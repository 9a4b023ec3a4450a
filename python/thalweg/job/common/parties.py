"""A party: the object that holds a job's model in an arena. A client's party trains it, the server's evaluates it.

The model is a payload of bytes, that of a known app, or that of an app of the user's own. ``PartyBuilder`` builds a
client's party from the config that the server sends with a round (``round_config``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from thalweg import _core, algorithms, apps, models, wire
from thalweg.algorithms import scaffold
from thalweg.algorithms.client_step import ClientStep, Received
from thalweg.apps import computing
from thalweg.apps.received_config import ReceivedConfig
from thalweg.errors import PlanError
from thalweg.tensors.watching import Note, Watch, ignore
from thalweg.transports import registry
from thalweg.wire import Table

if TYPE_CHECKING:
    from thalweg.apps.known_app import KnownApp
    from thalweg.plan import Plan
    from thalweg.tensors.binding import Binding, Words

# What an app returns from ``train`` and ``evaluate``; ``thalweg.apps.metrics`` checks it.
Metrics = Mapping[str, object]
# The values of job.evaluate: who evaluates.
SERVER: Final = "server"
CLIENTS: Final = "clients"
BOTH: Final = "both"
# Makes a client's party. Its arguments: a round's config, and the arena that holds the model.
PartyMaker = Callable[[ReceivedConfig, _core.Arena], "ClientParty"]


@dataclass(frozen=True, slots=True)
class NamedApp:
    """A user's own app: module:object or file.py:object, and its options."""

    object: str
    options: Table | None = None


class Trainer(Protocol):
    """Trains a model in an arena."""

    def train(self, config: ReceivedConfig) -> tuple[float, Metrics]:
        """Train the model in the arena in place; return (weight, metrics). The weight is samples by default."""


class ClientParty(Trainer, Protocol):
    """A client's part in a round: it trains, may evaluate, and makes its update."""

    def evaluation(self, config: ReceivedConfig) -> Metrics:
        """Evaluate the model just trained if the server's ``config`` asks for it; return the app's metrics."""

    def finish(self, samples: float, metrics: Metrics) -> tuple[float, Metrics]:
        """Turn the trained model in the arena into the algorithm's update; return its weight and metrics.

        ``samples`` and ``metrics`` are what ``train`` returned. Call it after ``evaluation``, because the arena may no
        longer hold the trained model afterwards.
        """


class ServerParty(Protocol):
    """The server's party: a model in an arena, which it can evaluate between rounds."""

    arena: _core.Arena
    parameters: int
    # Whether some trained tensors stay with the clients. Then each client's model differs from the server's.
    personal: bool
    # Whether the app can evaluate at all.
    evaluates: bool
    # Names of the tensors that training changes by gradients.
    trained: Sequence[str]

    def evaluate(self) -> Metrics:
        """Return metrics of the model in the arena, such as ``accuracy`` and ``loss``; none if it cannot evaluate."""


def bytes_of(arena: _core.Arena) -> memoryview:
    """Return a writable view of an arena's bytes."""
    import numpy as np

    return np.asarray(arena).data


class Payload:
    """Tensors that are only transferred, never trained. Server and clients both have it as their party."""

    personal = evaluates = False
    trained: Sequence[str] = ()

    def __init__(self, arena: _core.Arena) -> None:
        self.arena = arena
        self.parameters = arena.layout.elements

    @classmethod
    def of(cls, spec: models.PayloadSpec, seed: int, *, shared: bool = False) -> Payload:
        """Make a payload's tensors: float32 or float64 random numbers from 0 to 1, determined by the seed.

        ``shared`` puts them into a shared arena. Peers on this machine then map it instead of copying, if the transport
        can do that.
        """
        import numpy as np

        kind = np.dtype(np.float64 if spec.dtype == "F64" else np.float32)
        shapes = ((name, spec.dtype, [size // kind.itemsize]) for name, size in spec.tensors.items())
        arena = _core.Arena(_core.Layout(list(shapes)), shared=shared)
        values = np.asarray(arena).view(kind)
        np.random.default_rng(seed).random(dtype=kind.type, out=values)
        return cls(arena)

    def train(self, config: ReceivedConfig) -> tuple[int, Metrics]:
        """Keep the processor busy if the config's ``training`` asks for that. The values stay as they are."""
        training = config.section("training")
        if training:
            computing.compute(training)
        return 1, {}

    def evaluate(self) -> Metrics:
        return {}

    def evaluation(self, config: ReceivedConfig) -> Metrics:
        return {}

    def finish(self, samples: float, metrics: Metrics) -> tuple[float, Metrics]:
        return samples, metrics


def evaluators(chosen: str | None, *, personal: bool, evaluates: bool) -> Sequence[str]:
    """Return who evaluates: ``SERVER``, ``CLIENTS``, both or nobody. ``chosen`` is the plan's ``job.evaluate``.

    By default the server does. If trained tensors stay with the clients (``personal``), the clients do, since their
    models then differ from the server's. Raises PlanError if ``chosen`` is given and the app cannot evaluate.
    """
    if not evaluates:
        if chosen is not None:
            raise PlanError(f"job.evaluate is {chosen!r}, and the app has nothing to evaluate", apps.EVALUATING)
        return ()
    chosen = chosen or (CLIENTS if personal else SERVER)
    return (SERVER, CLIENTS) if chosen == BOTH else (chosen,)


def parameters_of(model: Any) -> int:
    """Return the number of trainable values: of a module's parameters, or of all arrays of a dict."""
    if isinstance(model, Mapping):
        return sum(int(array.size) for array in model.values())
    return sum(int(p.numel()) for p in model.parameters() if p.requires_grad)


class AppServer:
    """The server's party of an app. It evaluates on the app's test data (FedComm section III.C), if the app can."""

    def __init__(
        self,
        app: Any,
        *,
        tensors: Words = None,
        seed: int | None = None,
        shared: bool = False,
        beside: str = "",
        note: Note = ignore,
    ) -> None:
        """Build the model and load the test data. A seed determines the model's values. Raises ThalwegError.

        ``beside`` as in ``thalweg.tensors.binding.bind``.
        """
        from thalweg.tensors.binding import bind

        self._app = app
        self.evaluates = apps.evaluates(app)
        self._test = apps.ask(app.test_data, "test_data()") if self.evaluates else None
        self._bound = bind(
            apps.model_of(app, seed), tensors or getattr(app, "tensors", None), shared=shared, beside=beside
        )
        self._watch = Watch(self._bound, note)
        self.parameters = parameters_of(self._bound.model)
        self.arena, self.personal = self._bound.arena.core, self._bound.personal
        self.trained = self._bound.trained
        note(self._bound.summary())

    def evaluate(self) -> Metrics:
        """Evaluate the model with the values of the arena, even if the app moved its tensors out of the arena before.

        Raises ModelError, AppError.
        """
        if not self.evaluates:
            return {}

        def work(model: Any) -> Metrics:
            return apps.ask(lambda: dict(self._app.evaluate(model, self._test)), "evaluate()")

        return self._watch.evaluate(work)


class AppClient:
    """A client's party of an app, whose model is bound to an arena."""

    def __init__(
        self, app: Any, bound: Binding, data: Any, *, part: apps.Part | None = None, note: Note = ignore
    ) -> None:
        """Keep a bound model and the client's data. With ``part``, random numbers follow from it and the round."""
        self._app, self._data, self._part = app, data, part
        self._test: Any = None
        self._bound, self._watch = bound, Watch(bound, note)
        self._control: scaffold.Control | None = None
        self._step: ClientStep | None = None

    def train(self, config: ReceivedConfig) -> tuple[float, Metrics]:
        """Train the model in the arena; return the update's weight and metrics.

        Raises ModelError if the trained values cannot be copied back into the arena, and MetricsError if the app does
        not report what the algorithm needs.
        """
        self._step = self._step_of(config)
        if self._step is not None:
            self._step.before()
        self._correct(config)
        if self._part is not None:
            apps.seed_all(self._part.seed, self._part.index + 1, config.round)
        samples, metrics = self._watch.train(
            lambda model: apps.trained(self._app.train(model, self._data, config.table()))
        )
        if self._control is not None:
            self._control.finish(metrics)
            return 1.0, metrics
        return samples, metrics

    def finish(self, samples: float, metrics: Metrics) -> tuple[float, Metrics]:
        """Do the client's part of the algorithm after the training. Raises MetricsError."""
        return (samples, metrics) if self._step is None else self._step.after(samples, metrics)

    def _correct(self, config: ReceivedConfig) -> None:
        """If the algorithm corrects gradients, give a known app the corrections."""
        if not algorithms.find(config.algorithm[0]).beside:
            return
        if self._control is None:
            self._control = scaffold.Control(self._bound.arena, self._bound.trained)
        self._app.corrections = self._control.corrections()

    def _step_of(self, config: ReceivedConfig) -> ClientStep | None:
        """Return the client's part of the job's algorithm; None if it has none. Raises PlanError for a wrong config."""
        name, settings = config.algorithm
        algorithm = algorithms.find(name)
        make = algorithm.client
        if make is None:
            return None

        def measure() -> Metrics:
            return self._watch.evaluate(
                lambda model: apps.ask(lambda: dict(self._app.evaluate(model, self._data)), "evaluate()")
            )

        return make(algorithm.chosen(settings), Received(self._bound.arena, list(self._bound.trained)), measure)

    def evaluation(self, config: ReceivedConfig) -> Metrics:
        """Evaluate the trained model on the app's test data, if the config says ``evaluate``; else return nothing.

        The arena's values stay as they are. Raises ModelError, AppError.
        """
        if not config.evaluate or not apps.evaluates(self._app):
            return {}
        if self._test is None:
            self._test = apps.ask(self._app.test_data, "test_data()")

        def work(model: Any) -> Metrics:
            return apps.ask(lambda: dict(self._app.evaluate(model, self._test)), "evaluate()")

        return self._watch.evaluate(work)


class PartyBuilder:
    """A ``PartyMaker``: makes a client's party from the config that the server sends with a round.

    Values from the server are checked like those of a plan. ``data_root``, ``threads`` and ``app`` are the client's
    own: a server never decides which code a client runs. ``tensors`` limits which tensors may travel from here.
    """

    def __init__(
        self,
        name: str,
        *,
        data_root: str | None,
        threads: int | None,
        app: Any = None,
        tensors: Words = None,
        note: Note = ignore,
    ) -> None:
        self._name, self._threads, self._app, self._note = name, threads, app, note
        self._tensors = tensors or getattr(app, "tensors", None)
        self._own = ({} if data_root is None else {"root": data_root}, {} if threads is None else {"threads": threads})
        self._ready: _AppParts | None = None
        self._bound: Binding | None = None

    def bind(self, seed: int, *, shared: bool = False) -> _core.Arena:
        """Bind a new model of the app before the client joins, so that the server can refuse a wrong layout.

        The job's seed is not known yet. If it differs from ``seed``, ``prepare`` makes a new model. ``shared`` is as in
        ``thalweg.tensors.binding.bind``.
        """
        from thalweg.tensors.binding import bind

        self._bound = bind(apps.model_of(self._app, seed), self._tensors, shared=shared)
        self._seed = seed
        self._note(self._bound.summary())
        return self._bound.arena.core

    def prepare(self, config: ReceivedConfig) -> None:
        """Build the model and load the data before the first round, so that no round waits for that."""
        model = config.values.get("model")
        if self._app is not None:
            self._ready = self._own_app(config)
        elif config.app is not None:
            raise PlanError(
                f"the job trains the user's own app {config.app.get('object')!r}, and this client has none",
                "Give this client its app: thalweg client --app module:object",
            )
        elif not isinstance(model, str) or models.payload_bytes(model) is None:
            app = self._known(config)
            self._ready = _AppParts(app, app.model(), app.train_data(), None)

    def __call__(self, config: ReceivedConfig, arena: _core.Arena) -> ClientParty:
        """Return the party. Its model is bound to ``arena`` and has its values. Raises ThalwegError."""
        if self._ready is None:
            self.prepare(config)
        if self._ready is None:
            return Payload(arena)
        from thalweg.tensors.binding import attach

        app, model, data, part = self._ready
        bound = self._bound
        if bound is None or bound.model is not model:
            words = self._tensors or config.tensors or getattr(app, "tensors", None)
            bound = attach(model, arena, words, beside=algorithms.find(config.algorithm[0]).beside)
        return AppClient(app, bound, data, part=part, note=self._note)

    def _own_app(self, config: ReceivedConfig) -> _AppParts:
        part = apps.part_of(self._name, config)
        if self._bound is not None and (part is None or part.seed == self._seed):
            model = self._bound.model
        else:
            model = apps.model_of(self._app, None if part is None else part.seed)
        if self._threads is not None and "torch" in sys.modules:
            import torch

            torch.set_num_threads(self._threads)
        data = apps.client_data(self._app, part)
        return _AppParts(self._app, model, data, part)

    def _known(self, config: ReceivedConfig) -> KnownApp:
        from thalweg.plan import Plan

        names, values = config.names, config.values
        root, threads = self._own
        table = {
            "job": {"clients": values.get("clients"), "seed": values.get("seed")},
            "model": {"name": values.get("model")},
            "data": {**config.section("data"), **root},
            "training": {**config.section("training"), **threads},
            "algorithm": config.section("algorithm"),
        }
        plan = Plan.of(table, "what the server sent")
        return known_app(plan, apps.place_of(self._name, names, plan.job.clients))


def algorithm_table(name: str, settings: Mapping[str, float | bool | None]) -> Table | None:
    """Return the algorithm's name and settings for clients; None if clients have no part in it."""
    if not algorithms.find(name).at_clients:
        return None
    return {"name": name, **{key: value for key, value in settings.items() if value is not None}}


def modules_of(plan: Plan) -> list[str]:
    """Return the modules that each client or node of a plan imports, for the fork server to import once for all."""
    if plan.app is not None:
        # The run itself has loaded the user's app by now, and with it all that the app imports.
        if "torch" not in sys.modules:
            return []
        # The first optimizer of a process imports PyTorch's compiler, which takes seconds.
        return ["torch", "torch._dynamo"] if apps.says(plan.app.object, "torch.optim") else ["torch"]
    if models.payload_bytes(plan.model.name) is not None:
        return []
    package = ["torchvision"] if models.find(plan.model.name).family == "torchvision_models" else []
    return ["torch", *package, "thalweg.algorithms.local_sgd", "thalweg.data.transform", "thalweg.plan"]


class _AppParts(NamedTuple):
    """An app with its model and data. If ``part`` is given, random numbers follow from its seed and index."""

    app: Any
    model: Any
    data: Any
    part: apps.Part | None


def known_app(plan: Plan, client: int | None) -> KnownApp:
    """Return the built-in app of a plan that names no app of the user's, for a client or for the server.

    Raises ModelError, DataError or PlanError for a setting that cannot work.
    """
    from thalweg.apps.known_app import KnownApp

    return KnownApp(
        model=plan.model.name,
        data=plan.data.name,
        partition=plan.data.partition,
        samples=plan.data.samples,
        test_samples=plan.data.test_samples,
        data_root=plan.data.root,
        clients=plan.job.clients,
        client=client,
        seed=plan.job.seed,
        proximal=proximal_of(plan),
        **plan.training.model_dump(exclude=set(computing.KEYS)),
    )


def proximal_of(plan: Plan) -> float:
    """Return mu of FedProx; 0 for other algorithms."""
    return float(plan.algorithm_settings.get("mu") or 0.0)


def server_party(plan: Plan, note: Note = ignore) -> ServerParty:
    """Make the server's party of a plan. Raises PlanError, DataError, ModelError, AppError."""
    payload, shared = models.payload_of(plan.model.name), registry.lends(plan.url)
    if payload is not None:
        return Payload.of(payload, plan.job.seed, shared=shared)
    if plan.app is not None:
        app = apps.load(plan.app.object, plan.app.options)
        apps.check_rounds(
            app,
            late=plan.aggregation.stale is not None,
            partial=plan.aggregation.partial == "keep" or not plan.repair.resend,
            compressed=plan.compression.scheme is not None,
        )
        return AppServer(app, tensors=plan.model.tensors, seed=plan.job.seed, shared=shared, note=note)
    beside = algorithms.find(plan.algorithm.name).beside
    return AppServer(known_app(plan, None), tensors=plan.model.tensors, shared=shared, beside=beside, note=note)


@dataclass(frozen=True, kw_only=True)
class RoundConfig:
    """What the server sends with a round: all that a client needs to take part. Values that do not apply are missing.

    ``names`` are the clients' names in the order of their places (``star.roster``). With ``evaluate`` each client
    evaluates the model that it has trained. ``app``, ``data`` and ``training`` have keys of the plan's sections with
    these names. ``algorithm`` has the algorithm's name and settings, if clients have a part in it.
    """

    round: int
    rounds: int | None = None
    clients: int | None = None
    names: Sequence[str] | None = None
    seed: int | None = None
    tensors: Sequence[str] | None = None
    evaluate: bool | None = None
    app: Table | None = None
    model: str | None = None
    data: Table | None = None
    training: Table | None = None
    algorithm: Table | None = None

    def table(self) -> dict[str, object]:
        """Return the fields by name, as clients read them."""
        return wire.sparse(self)


def round_config(plan: Plan, number: int, names: Sequence[str], *, evaluate: bool = False) -> RoundConfig:
    """Return the config that the server sends with round ``number``."""
    if plan.is_payload:
        compute = None if plan.training.compute is None else plan.training.model_dump(include=set(computing.KEYS))
        return RoundConfig(round=number, model=plan.model.name, training=compute)
    config = RoundConfig(
        round=number,
        rounds=plan.job.rounds,
        clients=plan.job.clients,
        names=list(names),
        seed=plan.job.seed,
        tensors=plan.model.tensors,
        evaluate=True if evaluate else None,
        algorithm=algorithm_table(plan.algorithm.name, plan.algorithm_settings),
    )
    if plan.app is not None:
        return replace(config, app=plan.app.own())
    return replace(
        config,
        model=plan.model.name,
        data=plan.data.model_dump(include={"name", "partition", "samples"}, exclude_none=True),
        # Keys without a value are left out, because clients of older versions refuse keys that they do not know.
        training=plan.training.model_dump(exclude={*computing.KEYS, "threads"}, exclude_none=True),
    )
