"""Decentralized learning in a few lines: ``Node`` and ``dpsgd`` around the user's own app.

Each node trains its own model on its own data and averages with its neighbours. There is no server.
docs/how-to/decentralized.md shows how to use them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal

from thalweg import _core, apps, wire
from thalweg.algorithms import choco
from thalweg.apps.received_config import ReceivedConfig
from thalweg.errors import LinkError, PlanError, leaving
from thalweg.job.graph.iterations import IterationWeights, iterate
from thalweg.job.graph.peer import peer_of_app
from thalweg.machine.waiting import WAIT_SLICE
from thalweg.outcome import IterationReport
from thalweg.tensors.binding import bind

_log = logging.getLogger("thalweg")
_NONE: Final[Mapping[str, float]] = MappingProxyType({})


@dataclass(frozen=True)
class Step:
    """One iteration of a node: its number, the app's metrics of the mixed model, and the core's report.

    ``report`` has the state of each neighbour, bytes, and times in seconds of the node's clock
    (docs/reference/outcome.md).
    """

    number: int
    metrics: Mapping[str, Any]
    samples: int
    report: IterationReport = field(repr=False)

    @property
    def received(self) -> list[str]:
        """Names of the neighbours from whose model at least a part arrived in time."""
        return list(self.report["heard"])

    @property
    def complete(self) -> bool:
        """Whether the mean includes the whole model of every neighbour."""
        return len(self.report["whole"]) == len(self.report["exchanges"])


@dataclass(frozen=True)
class _Event:
    """An event of a link, as the core reports it."""

    kind: str
    peer: str
    text: str


class Node:
    """A node of a graph. Use it as a context manager, or close it."""

    def __init__(
        self,
        app: Any,
        *,
        name: str,
        listen: str = "tcp://127.0.0.1:0",
        data: Any = None,
        wait: Literal["all", "none", "first-chunk", "deadline"] = "all",
        deadline: float | None = None,
        mixing: Literal["complement", "renormalise", "paper", "symmetric"] = "complement",
        compress: Literal["f16", "int8"] | None = None,
        exchange: Literal["auto", "whole", "segments"] = "auto",
        seed: int = 0,
        tensors: str | Sequence[str] | None = None,
        ca: Path | str | None = None,
        cert: Path | str | None = None,
        key: Path | str | None = None,
    ) -> None:
        """Listen at ``listen`` with the model of ``app`` (``thalweg.App``). The node dials nobody before ``meet``.

        Neighbours know the node by its ``name``. ``tensors`` says which tensors travel; without it the app's
        ``tensors`` says so. Without ``data`` the data comes from the app's ``train_data()``. ``wait`` says what an
        iteration waits for before it averages. ``deadline`` is the most seconds that it waits after its own training;
        with ``wait="deadline"`` and no number, the deadline adapts. ``compress`` rounds the values that are sent, to
        half the bytes or a quarter.

        ``mixing`` says what happens with missing chunks. With ``complement`` the node's own chunk replaces a missing
        one. With ``renormalise`` the weights of the chunks that arrived are scaled to a sum of 1. With ``symmetric``
        two neighbours use only the chunks that arrived in both directions, so that no loss moves the mean of all
        models. ``paper`` has the weights of udp-dpsgd, section 3.5.2. The last two need the memory of one more model
        for each neighbour, and all nodes must use the same one.

        Where all nodes are each other's neighbours with the same weight, they may average by segments: each averages
        a part of all models, and sends its mean to the others. All then get the same mean, and a node of n sends
        2 (n - 1) / n models and not n - 1. ``exchange="auto"`` does so where that saves 256 KiB or more, and ``wait``,
        ``mixing`` and ``compress`` allow it: ``all``, ``complement`` or ``renormalise``, and none. ``segments`` does
        so whatever it saves, and ``whole`` never. If a node is missing, whole models are exchanged.

        All nodes must have the same ``seed``, so that their models begin with the same values. ``ca``, ``cert`` and
        ``key`` are PEM files of ``thalweg pki issue NAME --role graph-node --host HOST``, needed beyond this machine.
        Raises PlanError, LinkError, ModelError, CoreError.
        """
        from thalweg.transports import links, pki

        if (cert is None) != (key is None):
            raise PlanError("a certificate and its key go together", "Give both cert and key, or neither")
        identity = None
        if cert is not None and key is not None:
            identity = links.Identity.read(Path(cert), Path(key))
        trust = links.node_trust(listen, None if ca is None else pki.read(Path(ca)), identity)
        self.app, self.name, self.seed = app, name, seed
        if data is None and hasattr(app, "train_data"):
            data = apps.ask(app.train_data, "train_data()")
        self._data = data
        self._bound = bind(apps.model_of(app, seed), apps.own_tensors(app, tensors))
        self.model, self.arena = self._bound.model, self._bound.arena
        self._peer = peer_of_app(app, self._bound, self._data, seed=seed, note=_log.warning)
        options = {
            "transport": {"tls": trust.tls},
            "seed": seed,
            "wait": wait,
            "deadline": deadline,
            "mixing": mixing,
            "exchange": exchange,
            "start": self._peer.checksum(),
            "layers": {} if compress is None else {"compress": {"format": compress}},
        }
        self._mixing, self._wait, self._compress = mixing, wait, compress
        # The replicas of CHOCO-SGD, with the mixing weights for which they were made.
        self._replicas: tuple[choco.Replicas, Mapping[str, float]] | None = None
        self._core = _core.Node(self.arena.core, name, listen, wire.encode(options))
        self._weights: dict[str, float] = {}
        #: The last iteration that is done.
        self.number = 0

    @property
    def address(self) -> str:
        """The URL that neighbours connect to, with the port that the system chose."""
        return self._core.address

    @property
    def connected(self) -> list[str]:
        """Names of the neighbours that are connected."""
        return wire.decode(list[str], self._core.connected())

    def meet(self, neighbours: Mapping[str, str], weights: Mapping[str, float] = _NONE) -> None:
        """Name the neighbours, each with its URL; they must name this node too. A second call adds more neighbours.

        ``weights`` are the mixing weights of the neighbours' models; their sum is at most 1. The default of each is 1 /
        (1 + number of neighbours). That is Metropolis-Hastings if all nodes have the same number of neighbours. If they
        do not, give 1 / (1 + the larger of the two nodes' numbers). With ``mixing="paper"`` give 1 / (1 + the
        neighbour's number of neighbours); the sum may then be larger than 1. Raises PlanError for an invalid weight.
        """
        unknown = sorted(set(weights) - set(neighbours))
        if unknown:
            raise PlanError(f"there is a weight of {unknown[0]!r}, who is no neighbour", "Give weights of those met")
        names = [*self._weights, *(name for name in neighbours if name not in self._weights)]
        usual = {name: 1.0 / (1 + len(names)) for name in names}
        chosen = {**(self._weights if weights else usual), **dict(weights)}
        chosen = {name: chosen.get(name, usual[name]) for name in names}
        most = float(len(chosen)) if self._mixing == "paper" else 1 + 1e-9
        if min(chosen.values(), default=1.0) <= 0 or sum(chosen.values()) > most:
            raise PlanError(
                "the weights of a node's neighbours are more than 0, and in all at most 1", "Give smaller ones"
            )
        self._weights = chosen
        following = self.number + 1
        current, then = self._iteration_weights().core_weights(following, 0)
        self._core.meet(wire.encode(dict(neighbours)), following, current, then)

    def gather(self, timeout: float = 60.0) -> None:
        """Wait until all neighbours are connected. Raises LinkError if they are not after ``timeout`` seconds."""
        end = time.monotonic() + timeout
        while self._core.gather(len(self._weights), WAIT_SLICE) < len(self._weights):
            self._log_events()
            if time.monotonic() > end:
                away = sorted(set(self._weights) - set(self.connected))
                raise LinkError(f"{self.name} has not met {', '.join(away)} after {timeout:g} s", "Start them first")

    def iterations(self, rounds: int, data: Any, every: int, gamma: float | None = None) -> Iterator[Step]:
        """Run ``rounds`` iterations and yield each as it ends.

        ``dpsgd`` is the public function for this, and explains ``data``, ``every`` and ``gamma``.
        """
        swap = self._swap(gamma)
        peer = peer_of_app(self.app, self._bound, self._data, seed=self.seed, test=data, note=_log.warning)
        last = self.number + rounds

        def config(number: int) -> ReceivedConfig:
            return ReceivedConfig({"round": number, "rounds": last, "node": self.name, "seed": self.seed})

        for done in iterate(
            self._core,
            peer,
            self._iteration_weights(),
            last,
            config=config,
            evaluates_after=lambda number: data is not None and (number == last or number % every == 0),
            first=self.number + 1,
            swap=swap,
        ):
            self.number = done.number
            self._bound.restore("the iteration")
            self._log_events()
            metrics = done.evaluation.metrics if done.evaluation else {}
            yield Step(done.number, metrics, done.samples, wire.values_of(done.report))

    def _iteration_weights(self) -> IterationWeights:
        own = {self.name: 1.0 - sum(self._weights.values())} if self._mixing == "renormalise" else {}
        return IterationWeights([{**self._weights, **own}])

    def _swap(self, gamma: float | None) -> choco.Replicas | None:
        """Return the replicas of CHOCO-SGD with this ``gamma``, or None without it.

        Raises PlanError if they are impossible.
        """
        if gamma is None:
            self._replicas = None  # neighbours do not learn how the model changes meanwhile
            return None
        if not 0 < gamma <= 1:
            raise PlanError(f"gamma is {gamma}", "Give more than 0 and at most 1")
        if self._wait != "all" or self._mixing != "complement":
            raise PlanError(
                f"CHOCO-SGD cannot have wait={self._wait!r} and mixing={self._mixing!r}: a difference that is lost is "
                "missing for ever",
                "Make the node with wait='all' and mixing='complement', or leave gamma out",
            )
        if self._replicas is None:
            replicas = choco.Replicas(self.arena.core, gamma, self._compress, alike=self.number == 0)
            self._replicas = replicas, dict(self._weights)
        replicas, weights = self._replicas
        if weights != self._weights:
            raise PlanError(
                "CHOCO-SGD sums up what always the same neighbours send, and others were met", "Meet all of them first"
            )
        replicas.gamma = gamma
        return replicas

    def _log_events(self) -> None:
        """Log the events of the links."""
        for event in wire.decode(list[_Event], self._core.events()):
            _log.info("%s: %s %s %s", self.name, event.kind, event.peer, event.text)

    def close(self, reason: str = "the node is done") -> None:
        """Send what neighbours have not received yet, tell them the ``reason``, and leave for good. Idempotent.

        With ``wait="all"`` neighbours need the last model, so this waits until they have it. It gives up when no
        further neighbour has received it for ten seconds.
        """
        from thalweg.job.common.farewell import farewell

        with farewell(self._core, reason):
            self._core.finish_sending()

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from thalweg.job.common.farewell import reason

        with leaving(error):
            if error is None:
                self.close()
            else:
                self._core.close(reason(error))


def dpsgd(
    node: Node,
    rounds: int,
    *,
    data: Any = None,
    every: int = 1,
    timeout: float = 60.0,
    gamma: float | None = None,
) -> Iterator[Step]:
    """Run ``rounds`` iterations of decentralized SGD (Lian et al. 2017) on a node and yield each as it ends.

    Waits first until all its neighbours are connected. With ``data`` the app evaluates the mixed model on it after
    every ``every`` iterations and after the last. A node that is far behind skips iterations.

    With ``gamma`` it is CHOCO-SGD (Koloskova et al. 2019). A node sends the difference between its model and the
    replica that its neighbours have of it. Then it moves its model by ``gamma`` towards the neighbours' mean; with 1 it
    is DCD-PSGD. All nodes must have the same ``gamma``; ``thalweg.step_size`` returns one that suits a graph. A node
    needs ``wait="all"``, and memory for five more models.

    Raises LinkError if a neighbour is not connected after ``timeout`` seconds, CoreError if one refuses this node,
    RoundError if a difference is missing, PlanError for invalid arguments, and whatever the training raises.
    """
    if every < 1 or rounds < 1:
        raise PlanError(f"dpsgd has rounds = {rounds} and every = {every}", "Give 1 or more")
    node.gather(timeout)
    yield from node.iterations(rounds, data, every, gamma)


def step_size(graph: str, nodes: int, compress: Literal["f16", "int8"] | None = None, *, seed: int = 0) -> float:
    """Return the ``gamma`` of CHOCO-SGD for ``graph``, for example ``"ring"`` or ``"3-regular"``, with ``nodes`` nodes.

    It follows from the spectral gap and from how much ``compress`` rounds. ``seed`` is that of a graph that is drawn.
    Raises PlanError for a graph that is impossible, or that changes from iteration to iteration.
    """
    from thalweg.graphs import schedule

    drawn = schedule(graph, nodes, seed)
    if drawn.changes:
        raise PlanError(
            f"CHOCO-SGD needs always the same neighbours, and {graph} changes", "Take a graph that does not"
        )
    return choco.step_size(drawn, compress)
