"""What each side of a job does with the model in its arena: clients train it, the server evaluates it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from thalweg import _core, computing, models
from thalweg.errors import PlanError
from thalweg.watching import Note, Watch, ignore

if TYPE_CHECKING:
    from thalweg.binding import Binding
    from thalweg.image_app import ImageApp

Metrics = dict[str, Any]
# Makes a client's party from a round's config and the arena that holds the model.
PartyMaker = Callable[[Mapping[str, Any], _core.Arena], "ClientParty"]


class ClientParty(Protocol):
    """A client's work."""

    def train(self, config: Mapping[str, Any]) -> tuple[int, Metrics]:
        """Train the model in the arena in place; return (samples, metrics)."""


class ServerParty(Protocol):
    """A server's model, and what it does between rounds."""

    arena: _core.Arena
    parameters: int

    def evaluate(self) -> Metrics:
        """Return ``accuracy`` and ``loss`` of the model in the arena, or nothing."""


def bytes_of(arena: _core.Arena) -> memoryview:
    """Return a writable view of an arena's bytes."""
    import numpy as np

    return np.asarray(arena).data


class Payload:
    """Blocks of bytes that are moved and not trained. Both sides' party."""

    def __init__(self, arena: _core.Arena) -> None:
        self.arena = arena
        self.parameters = len(arena) // models.PAYLOAD_ELEMENT_BYTES

    @classmethod
    def of(cls, tensors: Mapping[str, int], seed: int) -> Payload:
        """Make tensors of so many bytes: float32 numbers from 0 to 1 that follow from the seed."""
        import numpy as np

        shapes = ((name, "F32", [size // models.PAYLOAD_ELEMENT_BYTES]) for name, size in tensors.items())
        arena = _core.Arena(_core.Layout(list(shapes)))
        values = np.asarray(arena).view(np.float32)
        np.random.default_rng(seed).random(dtype=np.float32, out=values)
        return cls(arena)

    def train(self, config: Mapping[str, Any]) -> tuple[int, Metrics]:
        """Take as long as ``config["training"]`` says, and change nothing."""
        asked = _table(config, "training")
        if asked:
            computing.compute(asked)
        return 1, {}

    def evaluate(self) -> Metrics:
        return {}


def parameters_of(model: Any) -> int:
    """Return the number of trainable values: of a module's parameters, or of all arrays of a dict."""
    if isinstance(model, Mapping):
        return sum(int(array.size) for array in model.values())
    return sum(int(p.numel()) for p in model.parameters() if p.requires_grad)


class AppServer:
    """A server's party of an app such as ``ImageApp``; evaluates on the app's test data (FedComm section III.C)."""

    def __init__(self, app: Any, note: Note = ignore) -> None:
        from thalweg.binding import bind

        self._app = app
        self._test = app.test_data()
        self._bound = bind(app.model())
        self._watch = Watch(self._bound, note)
        self.parameters = parameters_of(self._bound.model)
        self.arena = self._bound.arena.core

    def evaluate(self) -> Metrics:
        """Evaluate the model that is in the arena, whatever the app did to it before. Raises ModelError."""
        return self._watch.evaluate(lambda model: dict(self._app.evaluate(model, self._test)))


class AppClient:
    """A client's party of an app such as ``ImageApp``, whose model is bound to an arena."""

    def __init__(self, app: Any, bound: Binding, data: Any, note: Note = ignore) -> None:
        self._app, self._data = app, data
        self._watch = Watch(bound, note)

    def train(self, config: Mapping[str, Any]) -> tuple[int, Metrics]:
        """Train the model in the arena. Raises ModelError if what was trained cannot be brought back there."""
        samples, metrics = self._watch.train(lambda model: self._app.train(model, self._data, dict(config)))
        return int(samples), dict(metrics)


class Described:
    """Makes the party of a client that does what the server says the job is; ``PartyMaker``.

    What comes from the server is checked as a plan is. ``data_root`` and ``threads`` are this machine's own.
    """

    def __init__(self, name: str, *, data_root: str | None, threads: int | None, note: Note = ignore) -> None:
        self._name, self._note = name, note
        self._own = ({} if data_root is None else {"root": data_root}, {} if threads is None else {"threads": threads})
        self._ready: tuple[Any, Any, Any] | None = None

    def prepare(self, config: Mapping[str, Any]) -> None:
        """Build the model and load the data now, so that no round has to wait for it."""
        model = config.get("model")
        if not isinstance(model, str) or models.payload_bytes(model) is None:
            app = self._images(config)
            self._ready = app, app.model(), app.train_data()

    def __call__(self, config: Mapping[str, Any], arena: _core.Arena) -> ClientParty:
        """Return the party, its model's values being those in ``arena``. Raises PlanError, DataError, ModelError."""
        if self._ready is None:
            self.prepare(config)
        if self._ready is None:
            return Payload(arena)
        from thalweg.binding import attach

        app, model, data = self._ready
        return AppClient(app, attach(model, arena), data, self._note)

    def _images(self, config: Mapping[str, Any]) -> ImageApp:
        from thalweg.image_app import ImageApp
        from thalweg.plan import Plan

        names = config.get("names")
        if not isinstance(names, list) or not all(isinstance(other, str) for other in names):
            raise PlanError("the server does not say which clients there are", "Use the same version on both sides")
        root, threads = self._own
        table = {
            "job": {"clients": config.get("clients"), "seed": config.get("seed")},
            "model": {"name": config.get("model")},
            "data": {**_table(config, "data"), **root},
            "training": {**_table(config, "training"), **threads},
        }
        plan = Plan.of(table, "what the server sent")
        return ImageApp(**image_settings(plan), client=place_of(self._name, names, plan.job.clients))


def image_settings(plan: Any) -> dict[str, Any]:
    """Return a plan's settings of ``ImageApp``, all but the client's number."""
    return {
        "model": plan.model.name,
        "data": plan.data.name,
        "partition": plan.data.partition,
        "samples": plan.data.samples,
        "data_root": plan.data.root,
        "clients": plan.job.clients,
        "seed": plan.job.seed,
        **plan.training.model_dump(exclude=computing.KEYS),
    }


def place_of(name: str, names: Sequence[str], clients: int) -> int:
    """Return which part of the data is that of client ``name``, 0 to ``clients`` - 1.

    One that joined after the round's list was made takes a part that follows from its name.
    """
    place = names.index(name) if name in names else zlib.crc32(name.encode())
    return place % clients


def server_party(plan: Any, note: Note = ignore) -> ServerParty:
    """Return the server's party of a plan. Raises DataError, ModelError."""
    tensors = models.payload_tensors(plan.model.name)
    if tensors is not None:
        return Payload.of(tensors, plan.job.seed)
    from thalweg.image_app import ImageApp

    return AppServer(ImageApp(**image_settings(plan), client=None), note)


def round_config(plan: Any, number: int, names: Sequence[str]) -> dict[str, Any]:
    """Return what the server tells clients with round ``number``: all they need to take part."""
    if plan.is_payload:
        told = {"round": number, "model": plan.model.name}
        compute = plan.training.model_dump(include=computing.KEYS)
        return told if compute["compute"] is None else {**told, "training": compute}
    return {
        "round": number,
        "rounds": plan.job.rounds,
        "model": plan.model.name,
        "data": plan.data.model_dump(include={"name", "partition", "samples"}, exclude_none=True),
        "clients": plan.job.clients,
        "names": list(names),
        "seed": plan.job.seed,
        "training": plan.training.model_dump(exclude=computing.KEYS | {"threads"}),
    }


def _table(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}
