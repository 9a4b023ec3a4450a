"""DiLoCo: a plain PyTorch training loop whose peers exchange values every so many steps, over a server, tree or graph.

``diloco`` has two forms. If ``outer`` is a server's URL, the server takes the outer step (``thalweg.rounds`` with an
outer optimizer), and each exchange moves the whole model there and back (Douillard et al. 2023, algorithm 1). If
``outer`` makes an optimizer, each peer takes the outer step itself. Peers then need only a mean, from a server or from
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
from thalweg.job.diloco.exchanges import Exchange, Exchanged, NeighbourMean, RunningExchange, ServerMean, arena_for
from thalweg.machine.waiting import WAIT_SLICE
from thalweg.outcome import ClientRound
from thalweg.tensors.binding import Binding, bind
from thalweg.tensors.named import Named

if TYPE_CHECKING:
    import torch

_log = logging.getLogger("thalweg")
_NONE: Final[Mapping[str, str]] = MappingProxyType({})
#: Default of ``keep``: how much the values trained during an exchange count beside its result (Streaming DiLoCo,
#: section 2.2).
KEEP: Final = 0.5
#: Default of ``listen``: a port of this machine that the system chooses.
LISTEN: Final = "tcp://127.0.0.1:0"


class _Exchanges(Protocol):
    """A peer's exchanges with the others. Some of its steps are followed by one."""

    @property
    def number(self) -> int: ...
    @property
    def over(self) -> bool: ...
    @property
    def traffic(self) -> tuple[int, int]: ...
    def begin(self) -> None: ...
    def stepped(self, steps: int, metrics: Mapping[str, object]) -> Sequence[ClientRound]:
        """Begin and end the exchanges that are due after the step of this number; return those that have ended."""

    def close(self, reason: str, *, wait: bool = True) -> None:
        """Leave the job. With ``wait``, first finish an exchange that other peers wait for."""


class Peer:
    """A peer of a DiLoCo job, as ``diloco`` returns it. Use it as a context manager, or close it."""

    def __init__(
        self, model: torch.nn.Module, inner: torch.optim.Optimizer, exchanges: _Exchanges, every: int, between: int
    ) -> None:
        """Begin to take part after the steps of ``inner``. ``between``: steps between two exchanges."""
        self.model, self.every = model, every
        #: Number of steps of the inner optimizer since the peer joined.
        self.steps = 0
        #: The exchanges so far, each with the status of this peer's values.
        self.rounds: list[ClientRound] = []
        #: Metrics that go to the server with the next values, such as the loss. Without a server they go nowhere.
        self.metrics: dict[str, object] = {}
        #: Seconds in which training has waited for other peers, since the peer joined.
        self.waited = 0.0
        self._exchanges, self._between = exchanges, between
        self._hook = inner.register_step_post_hook(self._stepped)
        exchanges.begin()
        self._end_if_over()

    @property
    def over(self) -> bool:
        """Whether the job is over. Further steps change only the model of this process."""
        return self._exchanges.over

    @property
    def round(self) -> int:
        """Number of the running exchange, or else of the next one. With a server it is the number of the round."""
        return self._exchanges.number

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received. With a server, only those of the current connection."""
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
        """Count a step, and exchange values if that is due. The inner optimizer calls it after each step."""
        self.steps += 1
        began = time.perf_counter()
        ended = self._exchanges.stepped(self.steps, self.metrics)
        self.waited += time.perf_counter() - began
        self.rounds += ended
        if self.steps % self._between == 0:
            self.metrics = {}
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self.over:
            self._hook.remove()

    def close(self, reason: str = "the peer ends") -> None:
        """Leave the job for good, and tell the others the ``reason``. They go on without this peer. Idempotent.

        Without a server a running exchange is finished first, because neighbours wait for it.
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


class _WholeModelExchanges:
    """Exchanges of the whole model with a server that takes the outer step. Training waits for the next model."""

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
        """Wait for the server's next model, and train that from now on."""
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
        del wait  # an exchange is over before the step returns, so none can be running here
        self.over = True
        self._core.close(reason)


class _FragmentExchanges:
    """Exchanges of one fragment each. An exchange may run while the peer takes its next ``overlap`` steps."""

    def __init__(
        self, bound: Binding, steps: OuterSteps, exchange: Exchange, *, between: int, overlap: int, keep: float
    ) -> None:
        self._bound, self._outer, self.exchange = bound, steps, exchange
        self._between, self._overlap, self._keep = between, overlap, keep
        self._running: RunningExchange | None = None

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
        """Begin to take part. A newcomer first takes the others' values, one fragment in each exchange."""
        self._bound.collect("the model was made")
        first = self.exchange.join(self._outer)
        if not self.exchange.is_new:
            if first is not None:
                self._check_start(first)
            return
        self._outer.ready = [False] * len(self._outer.ready)
        done = first
        while True:
            # If the others' values did not arrive, they arrive with a later exchange of the same fragment.
            if done is not None and done.mean is not None and not self._outer.ready[done.fragment]:
                self._outer.adopt(done.fragment, self._mean(done))
            if all(self._outer.ready) or self.exchange.over:
                break
            self.exchange.give(self._outer, "{}")
            done = self.exchange.run()
        self._bound.restore("the values of the other peers arrived")

    def _mean(self, done: Exchanged) -> Values | None:
        return None if done.mean is None else self._outer.mean_of(done.fragment, done.mean)

    def _check_start(self, done: Exchanged) -> None:
        """Raise RoundError if the other peers began with other values than this one."""
        mean = self._mean(done)
        if mean is not None and not self._outer.begins_with(done.fragment, mean):
            raise RoundError(
                "the peers begin with different values, whose mean is not a usable model",
                "Make the model with the same random seed at all peers",
            )

    def stepped(self, steps: int, metrics: Mapping[str, object]) -> Sequence[ClientRound]:
        ended: list[ClientRound] = []
        if self._running is not None and steps - self._running.began >= self._overlap:
            ended.append(self._finish(self._running))
        if steps % self._between == 0 and not self.exchange.over:
            self._bound.collect("the steps")
            self.exchange.give(self._outer, offered(dict(metrics), {}))
            self._running = RunningExchange(self.exchange, steps)
            if not self._overlap:
                ended.append(self._finish(self._running))
        return ended

    def _finish(self, running: RunningExchange) -> ClientRound:
        """Wait for the end of an exchange, and take the outer step with its result."""
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
    """The app of a DiLoCo server, or tree, whose peers take the outer steps. Its model is one fragment of theirs.

    ``model`` returns the model that the peers train; ``fragments`` and ``tensors`` are those of ``diloco``. Give the
    app to ``thalweg.Server``, and run ``thalweg.rounds`` without an optimizer.
    """

    def __init__(
        self, model: Callable[[], torch.nn.Module], *, fragments: int = 1, tensors: str | Sequence[str] | None = None
    ) -> None:
        self._model, self._fragments, self._tensors = model, fragments, tensors
        #: Whether a late update may count in the next round. With several fragments the next round is of another one.
        self.takes_late_updates = fragments == 1
        #: Whether a part of an update may count. It may not: its share, the last value, belongs to all other values.
        self.takes_partial_updates = False
        #: Whether updates may be differences from the received model. They may not: peers send values.
        self.takes_compressed_updates = False

    def model(self) -> Named:
        """Return zeros of the size of a fragment."""
        bound = bind(self._model(), self._tensors)
        room = arena_for(Fragments(bound.arena, bound.trained, self._fragments), 1)
        return {name: np.zeros_like(array) for name, array in room.items()}

    def train(self, model: object, data: object, config: Mapping[str, object]) -> NoReturn:
        """Raise PlanError for any ``model``, ``data`` and ``config``: peers join with ``thalweg.diloco``."""
        raise PlanError("a FragmentApp is for servers, and trains nothing", "Join with thalweg.diloco")


def diloco(
    model: torch.nn.Module,
    inner: torch.optim.Optimizer,
    outer: str | MakeOptimizer,
    *,
    every: int,
    name: str,
    server: str | None = None,
    neighbours: Mapping[str, str] = _NONE,
    listen: str = LISTEN,
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

    From then on ``inner.step()`` does the rest: in each ``every`` steps the peer exchanges its whole model with the
    others. ``outer`` says where the outer step is taken. Each peer of a job needs a ``name`` of its own, and all need
    the same ``every``, ``fragments`` and initial values.

    - **A URL**: the server there takes it, with the ``optimizer`` of ``thalweg.rounds``. Each ``every``-th
      ``inner.step()`` sends the model, and returns when the model has the values of the next round.
    - **A function that makes a** ``torch.optim.Optimizer``: each peer takes it, from the mean of all peers' values. The
      mean comes from ``server``, the URL of a server or of a tree's node whose app is a ``FragmentApp``; or from
      ``neighbours``, other peers by name, each with its URL. ``listen`` is then this peer's own address.

    ``fragments`` is the number of parts of the model. One of them is exchanged after each ``every`` / ``fragments``
    steps, so no link carries the whole model at once. With ``overlap`` the peer takes so many further steps while the
    exchange runs. Then the model becomes ``keep`` times its present values plus 1 - ``keep`` times the result. Only a
    peer that takes the outer step can have fragments and overlap. Its outer optimizer gets one flat tensor for each
    fragment.

    With a server, ``Server(enough=, deadline=)`` says how many peers a round waits for, and how long. ``peer.over``
    says when the job is over. With neighbours the peer first waits up to ``timeout`` seconds until ``enough`` of them,
    or all, are connected. An exchange waits for all that are connected; with ``wait="deadline"`` for at most
    ``deadline`` seconds, or without a number for a time that adapts. ``compress`` rounds the values that are sent to
    neighbours, and ``ca``, ``cert`` and ``key`` are as for ``thalweg.Node``. ``tensors`` and ``token_file`` are as for
    ``thalweg.Client``, and so is ``timeout`` with a server. What has an effect among neighbours only, or with a server
    only, is refused elsewhere.

    A newcomer first takes the others' values, one fragment in each of their exchanges. Until it has all of them, its
    own do not count in the mean.

    Raises PlanError for arguments that contradict each other, LinkError, ModelError. Raises CoreError, also from
    ``inner.step()``, if the peer is refused or the server is gone for good, and RoundError for values that are not
    finite, or if the peers begin with different values.
    """
    takes_outer_step = not isinstance(outer, str)
    _check(every, fragments, overlap, keep, takes_outer_step=takes_outer_step, sources=bool(server) + bool(neighbours))
    among_neighbours: dict[str, object] = {"enough": enough, "deadline": deadline, "compress": compress}
    among_neighbours |= {"ca": ca, "cert": cert, "key": key}
    among_neighbours |= {"listen": None if listen == LISTEN else listen, "wait": None if wait == "all" else wait}
    _check_effects(among_neighbours, {"token_file": token_file}, has_server=not neighbours)
    if isinstance(outer, str):
        bound = _bound(model, tensors, outer)
        core = _client(outer, name, token_file, timeout)(bound.arena.core)
        return _joined(model, inner, _WholeModelExchanges(core, bound, every), every, every)
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
    streaming = _FragmentExchanges(bound, steps, exchange, between=between, overlap=overlap, keep=keep)
    return _joined(model, inner, streaming, every, between)


def _check(every: int, fragments: int, overlap: int, keep: float, *, takes_outer_step: bool, sources: int) -> None:
    """Raise PlanError for settings that contradict each other.

    ``sources``: how many of ``server`` and ``neighbours`` are given.
    """
    if every < 1:
        raise PlanError(f"every is {every}", "Give the number of inner steps between two exchanges, such as 100")
    if fragments < 1 or every % fragments:
        raise PlanError(
            f"{every} steps cannot be divided evenly among {fragments} fragments",
            "Give fragments that divide every, such as every=100 and fragments=4",
        )
    if not 0 <= overlap <= every // fragments:
        raise PlanError(
            f"overlap is {overlap}, and the next exchange begins after {every // fragments} steps",
            "Give at most every / fragments",
        )
    if not 0 <= keep < 1:
        raise PlanError(f"keep is {keep}", "Give at least 0 and less than 1")
    if not takes_outer_step and (fragments > 1 or overlap or sources):
        raise PlanError(
            "fragments, overlap, server and neighbours are for peers that take the outer step themselves",
            "Give a function that makes an optimizer as outer, and the server's URL as server",
        )
    if takes_outer_step and sources != 1:
        raise PlanError(
            "an outer optimizer needs the peers' mean, from a server or from neighbours",
            "Give one of them: server, the URL of a server or of a tree's node, or neighbours",
        )


def _check_effects(
    among_neighbours: Mapping[str, object], with_server: Mapping[str, object], *, has_server: bool
) -> None:
    """Raise PlanError for settings without an effect: each mapping has those of one kind of peer, None if not given."""
    given = [name for name, value in (among_neighbours if has_server else with_server).items() if value is not None]
    if not given:
        return
    has, it = ("has", "it") if len(given) == 1 else ("have", "them")
    where = "with a server" if has_server else "among neighbours"
    instead = "neighbours instead of a server" if has_server else "a server instead of neighbours"
    raise PlanError(f"{', '.join(given)} {has} no effect {where}", f"Leave {it} out, or give {instead}")


def _bound(model: torch.nn.Module, tensors: str | Sequence[str] | None, url: str) -> Binding:
    from thalweg.transports import registry

    return bind(model, tensors, shared=registry.lends(url))


def _client(
    url: str, name: str, token_file: Path | str | None, timeout: float
) -> Callable[[_core.Arena], _core.Client]:
    """Return a function that makes a client of the server at ``url``, whose model is the given arena."""
    from thalweg.transports import links, pki

    token = None if token_file is None else pki.read_token(Path(token_file))
    trust = links.remote_trust(url, token, None, None, "auto")
    options = {"transport": {"tls": trust.tls}, "token": trust.token, "timeout": timeout}
    return lambda arena: _core.Client(url, name, wire.encode(options), arena)


def _trust(listen: str, ca: Path | str | None, cert: Path | str | None, key: Path | str | None) -> Mapping[str, object]:
    """Return the core's transport options for a peer with neighbours."""
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
                "Start them first, or give enough=N to begin with N neighbours",
            )


def _joined(
    model: torch.nn.Module, inner: torch.optim.Optimizer, exchanges: _Exchanges, every: int, between: int
) -> Peer:
    """Return the peer once it takes part. Close its exchanges if it cannot."""
    try:
        return Peer(model, inner, exchanges, every, between)
    except BaseException:
        exchanges.close("the peer cannot begin", wait=False)
        raise
