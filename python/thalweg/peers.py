"""DiLoCo: a plain PyTorch loop that exchanges values with its peers every so many steps, by a server, tree or graph.

``diloco`` has two forms. With a server's URL and nothing more, the server takes the outer step (``thalweg.rounds``
with an outer optimizer), and each exchange moves the whole model there and back (Douillard et al. 2023, algorithm 1).
With an outer optimizer each peer takes the outer step itself. Peers then need only a mean, of a server or of
neighbours, and may exchange the model in fragments while they go on training (Douillard et al. 2025, Streaming
DiLoCo). The inner optimizer keeps its state in both.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Final, Literal, NoReturn, Protocol

import numpy as np

from thalweg import _core, wire
from thalweg.algorithms.diloco import Fragments, OuterSteps
from thalweg.algorithms.server_step import Values
from thalweg.algorithms.torch_rule import MakeOptimizer, TorchRule
from thalweg.apps.metrics import offered
from thalweg.errors import LinkError, PlanError, RoundError, leaving
from thalweg.job.diloco.exchanges import Exchange, Exchanged, NeighbourMean, Running, ServerMean, arena_for
from thalweg.machine.waiting import WAIT_SLICE
from thalweg.outcome import ClientRound
from thalweg.tensors.binding import Binding, bind
from thalweg.tensors.named import Named

if TYPE_CHECKING:
    import torch

_log = logging.getLogger("thalweg")
_NONE: Final[Mapping[str, str]] = MappingProxyType({})
#: Share of the values trained since that a result keeps when it comes later (Streaming DiLoCo, section 2.2).
KEEP: Final = 0.5


class _Exchanges(Protocol):
    """A peer's exchanges with others, which are due after some of its steps."""

    @property
    def number(self) -> int: ...
    @property
    def over(self) -> bool: ...
    @property
    def traffic(self) -> tuple[int, int]: ...
    def begin(self) -> None: ...
    def stepped(self, steps: int, metrics: Mapping[str, object]) -> Sequence[ClientRound]:
        """Do what is due after this many steps; return the exchanges that have ended."""

    def close(self, reason: str, *, wait: bool = True) -> None:
        """Leave. With ``wait`` an exchange that others wait for goes on to its end."""


class Peer:
    """A peer of a DiLoCo job, as ``diloco`` returns it. Use it as a context manager, or close it."""

    def __init__(
        self, model: torch.nn.Module, inner: torch.optim.Optimizer, exchanges: _Exchanges, every: int, rest: int
    ) -> None:
        self.model, self.every = model, every
        #: Number of steps of the inner optimizer since the peer joined.
        self.steps = 0
        #: The rounds so far, each with what became of this peer's values.
        self.rounds: list[ClientRound] = []
        #: Metrics that go to the server with the next values, such as the loss. Without a server they go nowhere.
        self.metrics: dict[str, object] = {}
        #: Seconds in which training has waited for other peers, since the peer joined.
        self.waited = 0.0
        self._exchanges, self._rest = exchanges, rest
        self._hook = inner.register_step_post_hook(self._stepped)
        exchanges.begin()
        self._end_if_over()

    @property
    def over(self) -> bool:
        """Whether the job is over. Steps then change the model of this process alone."""
        return self._exchanges.over

    @property
    def round(self) -> int:
        """Number of the round, or of the exchange, that goes on or comes next."""
        return self._exchanges.number

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received; with a server, on the current connection."""
        return self._exchanges.traffic

    @property
    def address(self) -> str:
        """The URL that neighbours connect to. Raises PlanError for a peer that has a server."""
        return self._neighbours().address

    @property
    def connected(self) -> list[str]:
        """Names of the neighbours that are connected. Raises PlanError for a peer that has a server."""
        return self._neighbours().connected

    def add_neighbours(self, neighbours: Mapping[str, str]) -> None:
        """Add neighbours, each with its URL. They must name this peer too. Raises PlanError, LinkError."""
        self._neighbours().connect_to(neighbours)

    def _neighbours(self) -> NeighbourMean:
        exchange = getattr(self._exchanges, "exchange", None)
        if not isinstance(exchange, NeighbourMean):
            raise PlanError("this peer has a server, and no neighbours", "Give diloco neighbours, and no URL")
        return exchange

    def _stepped(self, *_: object) -> None:
        """Count a step, and do what is due after it."""
        self.steps += 1
        began = time.perf_counter()
        ended = self._exchanges.stepped(self.steps, self.metrics)
        self.waited += time.perf_counter() - began
        self.rounds += ended
        if self.steps % self._rest == 0:
            self.metrics = {}
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self.over:
            self._hook.remove()

    def close(self, reason: str = "the peer ends") -> None:
        """Leave the job for good, and tell the others the ``reason``. They go on. Idempotent.

        Without a server an exchange that runs goes on to its end first, since neighbours wait for it.
        """
        self._hook.remove()
        self._exchanges.close(reason)

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with leaving(error):
            self._hook.remove()
            self._exchanges.close(f"{type(error).__name__}: {error}", wait=False)


class _WholeModel:
    """Each exchange sends the model to a server, which takes the outer step, and waits for the next model."""

    def __init__(self, core: _core.Client, bound: Binding, every: int) -> None:
        self._core, self._bound, self._every = core, bound, every
        self.number, self.over = 0, False

    @property
    def traffic(self) -> tuple[int, int]:
        return self._core.traffic

    def begin(self) -> None:
        self._core.join()
        self._next()

    def _next(self) -> None:
        """Wait for the server's model, and train it from now on."""
        task = self._core.next()
        if task is None:
            self.over = True
            return
        self.number = task[0]
        self._bound.restore("the round")

    def stepped(self, steps: int, metrics: Mapping[str, object]) -> Sequence[ClientRound]:
        if steps % self._every:
            return ()
        self._bound.collect("the steps")
        number = self.number
        status = self._submit(offered(dict(metrics), {}))
        if status == "done":
            self.over = True
        else:
            self._next()
        return [{"round": number, "samples": 1.0, "status": status}]

    def _submit(self, metrics: str) -> str:
        try:
            return self._core.submit(self.number, 1.0, metrics)
        except _core.CoreError as error:
            if error.kind != "rejected":
                raise
            _log.warning("round %d: %s", self.number, error)
            return "rejected"

    def close(self, reason: str, *, wait: bool = True) -> None:
        del wait  # no exchange runs between two steps
        self.over = True
        self._core.close(reason)


class _Streaming:
    """Each exchange is of one fragment, while training goes on for up to ``overlap`` steps."""

    def __init__(
        self, bound: Binding, steps: OuterSteps, exchange: Exchange, *, between: int, overlap: int, keep: float
    ) -> None:
        self._bound, self._outer, self.exchange = bound, steps, exchange
        self._between, self._overlap, self._keep = between, overlap, keep
        self._running: Running | None = None

    @property
    def number(self) -> int:
        return self.exchange.number

    @property
    def over(self) -> bool:
        return self.exchange.over and self._running is None

    @property
    def traffic(self) -> tuple[int, int]:
        return self.exchange.traffic

    def begin(self) -> None:
        """Begin to take part. A newcomer takes the others' values first, one fragment after the other."""
        self._bound.collect("the model was made")
        first = self.exchange.join(self._outer)
        if not self.exchange.is_new:
            if first is not None:
                self._check_start(first)
            return
        self._outer.ready = [False] * len(self._outer.ready)
        done = first
        while True:
            # If the others' values did not come, they come with a later exchange of the same fragment.
            if done is not None and done.place is not None and not self._outer.ready[done.fragment]:
                self._outer.adopt(done.fragment, self._mean(done))
            if all(self._outer.ready) or self.exchange.over:
                break
            self.exchange.give(self._outer, "{}")
            done = self.exchange.run()
        self._bound.restore("the values of the other peers came")

    def _mean(self, done: Exchanged) -> Values | None:
        return None if done.place is None else self._outer.mean_of(done.fragment, done.place)

    def _check_start(self, done: Exchanged) -> None:
        """Raise RoundError if peers began with other values than this one."""
        mean = self._mean(done)
        if mean is not None and not self._outer.begins_with(done.fragment, mean):
            raise RoundError(
                "the peers begin with different values, and their mean is no model",
                "Give the random generator the same seed at all peers before the model is made",
            )

    def stepped(self, steps: int, metrics: Mapping[str, object]) -> Sequence[ClientRound]:
        ended: list[ClientRound] = []
        if self._running is not None and steps - self._running.began >= self._overlap:
            ended.append(self._finish(self._running))
        if steps % self._between == 0 and not self.exchange.over:
            self._bound.collect("the steps")
            self.exchange.give(self._outer, offered(dict(metrics), {}))
            self._running = Running(self.exchange, steps)
            if not self._overlap:
                ended.append(self._finish(self._running))
        return ended

    def _finish(self, running: Running) -> ClientRound:
        """Wait for the end of an exchange, and give the model its result."""
        self._running = None
        done = running.result()
        mean = self._mean(done)
        if mean is not None:
            self._bound.collect("the steps")
            self._outer.step(done.fragment, mean, self._keep if self._overlap else 0.0)
            self._bound.restore("the exchange")
        return {"round": done.number, "samples": 1.0, "status": done.status}

    def close(self, reason: str, *, wait: bool = True) -> None:
        running, self._running = self._running, None
        try:
            if wait and running is not None and isinstance(self.exchange, NeighbourMean) and not self.exchange.over:
                running.result()  # neighbours wait for these values
        finally:
            self.exchange.close(reason)


class FragmentApp:
    """The app of a server, or of a tree, whose peers take the outer steps: it has room for one fragment, and no model.

    ``model`` returns the model that the peers train, and ``fragments`` and ``tensors`` are those of ``diloco``. Give
    it to ``thalweg.Server``, and run ``thalweg.rounds`` without an optimizer.
    """

    def __init__(
        self, model: Callable[[], torch.nn.Module], *, fragments: int = 1, tensors: str | Sequence[str] | None = None
    ) -> None:
        self._model, self._fragments, self._tensors = model, fragments, tensors
        #: Whether an update of one round may count in the next one, which exchanges the next fragment.
        self.takes_late_updates = fragments == 1
        #: Whether a part of an update may count. A fragment's last value, its share, goes with all others.
        self.takes_partial_updates = False
        #: Whether updates may be differences from the received model. Peers send values.
        self.takes_compressed_updates = False

    def model(self) -> Named:
        """Return zeros of the size of a fragment."""
        bound = bind(self._model(), self._tensors)
        room = arena_for(Fragments(bound.arena, bound.trained, self._fragments), 1)
        return {name: np.zeros_like(array) for name, array in room.items()}

    def train(self, model: object, data: object, config: Mapping[str, object]) -> NoReturn:
        """Raise PlanError for any ``model``, ``data`` and ``config``: peers join with ``thalweg.diloco``."""
        raise PlanError("a FragmentApp is a server's, and trains nothing", "Join with thalweg.diloco")


def diloco(
    model: torch.nn.Module,
    inner: torch.optim.Optimizer,
    outer: str | MakeOptimizer,
    *,
    every: int,
    name: str,
    server: str | None = None,
    neighbours: Mapping[str, str] = _NONE,
    listen: str = "tcp://127.0.0.1:0",
    fragments: int = 1,
    overlap: int = 0,
    keep: float = KEEP,
    enough: int | None = None,
    wait: Literal["all", "deadline"] = "all",
    deadline: float | None = None,
    compress: Literal["f16", "int8"] | None = None,
    tensors: str | Sequence[str] | None = None,
    token_file: Path | str | None = None,
    ca: Path | str | None = None,
    cert: Path | str | None = None,
    key: Path | str | None = None,
    timeout: float = 30.0,
) -> Peer:
    """Join a DiLoCo job as ``name``, and return once ``model`` has the values to train from.

    From then on ``inner.step()`` does the rest: after ``every`` steps the peer has exchanged its whole model with the
    others. ``outer`` says where the outer step is taken. No two peers of a job have the same ``name``, and all have the
    same ``every``, ``fragments`` and initial values.

    - **A URL**: by the server there, with the ``optimizer`` of ``thalweg.rounds``. Each ``every``-th ``inner.step()``
      sends the model, and returns when the model has the values of the next round.
    - **A function that makes a** ``torch.optim.Optimizer``: by each peer, from the mean of all peers' values. That
      comes from ``server``, the URL of a server or of a tree's node whose app is a ``FragmentApp``; or from
      ``neighbours``, other peers by name, each with its URL. ``listen`` is then this peer's own address.

    ``fragments`` cuts the model: after each ``every`` / ``fragments`` steps one fragment is exchanged, so no link
    carries the whole model at once. With ``overlap`` the exchange runs during so many further steps. Its result then
    replaces the values trained meanwhile only in part: a share ``keep`` of these stays. Only a peer that takes the
    outer step can have both. The optimizer gets one flat tensor for each fragment.

    With a server, ``Server(enough=, deadline=)`` says for whom a round waits; ``peer.over`` says when the job is over.
    With neighbours the peer first waits up to ``timeout`` seconds until ``enough`` of them, or all, are connected. An
    exchange waits for all that are connected, or with ``wait="deadline"`` for ``deadline`` seconds, which adapt
    without a number. ``compress`` rounds what neighbours are sent, and ``ca``, ``cert`` and ``key`` are as for
    ``thalweg.Node``. ``tensors`` and ``token_file`` are as for ``thalweg.Client``, and so is ``timeout`` with a
    server.

    A newcomer takes the others' values before it counts, one fragment in each of their exchanges.

    Raises PlanError for what does not go together, LinkError, ModelError; and CoreError, also from ``inner.step()``, if
    the peer is refused or the server is gone for good; and RoundError for values that are not finite, or if the peers
    begin with different values.
    """
    streams = not isinstance(outer, str)
    _check(every, fragments, overlap, keep, streams=streams, ways=bool(server) + bool(neighbours))
    if isinstance(outer, str):
        bound = _bound(model, tensors, outer)
        core = _client(outer, name, token_file, timeout)(bound.arena.core)
        return _joined(model, inner, _WholeModel(core, bound, every), every, every)
    bound = _bound(model, tensors, server or listen)
    cut = Fragments(bound.arena, bound.trained, fragments)
    make = outer
    bound.collect("the model was made")
    steps = OuterSteps(cut, lambda values: TorchRule(values, make))
    exchange: Exchange
    if server is not None:
        exchange = ServerMean(cut, _client(server, name, token_file, timeout))
    else:
        layers = {} if compress is None else {"compress": {"format": compress}}
        transport = _trust(listen, ca, cert, key)
        options = {"transport": transport, "wait": wait, "deadline": deadline, "layers": layers, "exchange": "auto"}
        exchange = NeighbourMean(cut, name, listen, options)
        try:
            _connect(exchange, neighbours, enough, timeout)
        except BaseException:
            exchange.close("the peer cannot begin")
            raise
    between = every // fragments
    streaming = _Streaming(bound, steps, exchange, between=between, overlap=overlap, keep=keep)
    return _joined(model, inner, streaming, every, between)


def _check(every: int, fragments: int, overlap: int, keep: float, *, streams: bool, ways: int) -> None:
    """Raise PlanError for settings that do not go together."""
    if every < 1:
        raise PlanError(f"every is {every}", "Give the number of inner steps between two exchanges, such as 100")
    if fragments < 1 or every % fragments:
        raise PlanError(
            f"{fragments} fragments cannot be exchanged in {every} steps evenly",
            "Give fragments that divide every, such as every=100 and fragments=4",
        )
    if not 0 <= overlap <= every // fragments:
        raise PlanError(
            f"overlap is {overlap}, and the next exchange begins after {every // fragments} steps",
            "Give at most every / fragments",
        )
    if not 0 <= keep < 1:
        raise PlanError(f"keep is {keep}", "Give at least 0 and less than 1")
    if not streams and (fragments > 1 or overlap or ways):
        raise PlanError(
            "a server that takes the outer step gets the whole model, and this peer waits for the next one",
            "Give an outer optimizer instead of the URL, and the URL as server",
        )
    if streams and ways != 1:
        raise PlanError(
            "an outer optimizer needs the mean of the other peers",
            "Give server, the URL of a server or of a tree's node, or neighbours",
        )


def _bound(model: torch.nn.Module, tensors: str | Sequence[str] | None, url: str) -> Binding:
    from thalweg.transports import registry

    return bind(model, tensors, shared=registry.lends(url))


def _client(
    url: str, name: str, token_file: Path | str | None, timeout: float
) -> Callable[[_core.Arena], _core.Client]:
    """Return what connects to the server at ``url`` with an arena."""
    from thalweg.transports import links, pki

    token = None if token_file is None else pki.read_token(Path(token_file))
    trust = links.remote_trust(url, token, None, None, "auto")
    options = {"transport": {"tls": trust.tls}, "token": trust.token, "timeout": timeout}
    return lambda arena: _core.Client(url, name, wire.encode(options), arena)


def _trust(listen: str, ca: Path | str | None, cert: Path | str | None, key: Path | str | None) -> Mapping[str, object]:
    """Return the core's options of the transport of a peer with neighbours."""
    from thalweg.transports import links, pki

    if (cert is None) != (key is None):
        raise PlanError("a certificate and its key go together", "Give both cert and key, or neither")
    identity = None
    if cert is not None and key is not None:
        identity = links.Identity.read(Path(cert), Path(key))
    return {"tls": links.node_trust(listen, None if ca is None else pki.read(Path(ca)), identity).tls}


def _connect(exchange: NeighbourMean, neighbours: Mapping[str, str], enough: int | None, timeout: float) -> None:
    """Connect to the neighbours. Raises LinkError if not enough are there in time."""
    exchange.connect_to(neighbours)
    wanted = len(neighbours) if enough is None else enough
    end = time.monotonic() + timeout
    while (here := exchange.gather(wanted, WAIT_SLICE)) < wanted:
        if time.monotonic() > end:
            away = ", ".join(sorted(set(neighbours) - set(exchange.connected)))
            raise LinkError(
                f"{here} of {wanted} neighbours are connected after {timeout:g} s; {away} are not",
                "Start them first, or give enough, the number to begin with",
            )


def _joined(model: torch.nn.Module, inner: torch.optim.Optimizer, exchanges: _Exchanges, every: int, rest: int) -> Peer:
    try:
        return Peer(model, inner, exchanges, every, rest)
    except BaseException:
        exchanges.close("the peer cannot begin", wait=False)
        raise
