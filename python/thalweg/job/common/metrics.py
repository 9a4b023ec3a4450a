"""Metrics of a running job for Prometheus: ``--metrics PORT`` serves them at ``http://127.0.0.1:PORT/metrics``.

``/health`` answers ``ok`` as long as the process runs. ``thalweg.job.common.page_server`` serves both.

| metric | what |
|---|---|
| ``thalweg_rounds_total`` | finished rounds; on a graph, iterations |
| ``thalweg_updates_total{state}`` | participants of rounds, by the state of their update |
| ``thalweg_bytes_total{direction}`` | bytes on clients' links down and up, and between nodes of a tree |
| ``thalweg_round_seconds`` ``thalweg_completion_seconds`` | histograms: time of a round, and of a tree's aggregation |
| ``thalweg_clients`` | connected clients |
| ``thalweg_certificate_expiry_timestamp_seconds{name}`` | when the server's and its authority's certificates expire |
| ``thalweg_accuracy`` ``thalweg_loss`` | of the model when it was last evaluated |
| all others, by ``node`` | the work of a tree node's workers, and its pool (``_OF_NODES``) |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from thalweg import _core
from thalweg.errors import LinkError
from thalweg.job.common.page_server import PLAIN, PageServer
from thalweg.outcome import Entry, completion_seconds
from thalweg.outcome.core import Outcome, ReplyFold, TreeFold
from thalweg.transports.pki import own_expiries
from thalweg.trees.counters import Now, Workers

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

# Metrics of a tree's nodes, by name: help text, value in a node's counters, and whether it only grows (a counter).
_OF_NODES: Final[Mapping[str, tuple[str, Callable[[Workers], float], bool]]] = {
    "thalweg_workers": ("worker processes that a node should have", lambda node: node.workers, False),
    "thalweg_workers_started": ("worker processes started", lambda node: node.aggregators_created, True),
    "thalweg_workers_warm": ("workers that began a round with the process of an earlier one", lambda n: n.warm, True),
    "thalweg_leaves": ("workers that fold updates; a plan may change their number", lambda node: node.leaves, False),
    "thalweg_plans": (
        "plans of a node's workers while the job ran",
        lambda node: 0 if node.decisions is None else node.decisions.count,
        True,
    ),
    "thalweg_workers_retired": ("workers that were asked to end", lambda node: node.retired, True),
    "thalweg_middles_reused": (
        "rounds in which a leaf took over the work of the middle",
        lambda node: node.reused.middle,
        True,
    ),
    "thalweg_worker_deaths": ("worker processes that ended while they were wanted", lambda node: node.died, True),
    "thalweg_worker_cpu_seconds": ("CPU time of workers, as of their last commits", lambda n: n.cpu_seconds, True),
    "thalweg_folds": (
        "parts of updates that workers have added",
        lambda n: n.now.folds,
        True,
    ),
    "thalweg_commits": ("times that a worker committed its sums", lambda node: node.commits, True),
    "thalweg_pool_bytes": ("memory of the pool", lambda node: node.pool_bytes, False),
    "thalweg_pool_places": ("updates that the pool has room for", lambda node: node.now.places, False),
    "thalweg_pool_free_places": ("updates that the pool has room for now", lambda node: node.now.free, False),
    "thalweg_sums_bytes": ("memory of the workers' sums", lambda node: node.sums_bytes, False),
}
_HANDOVER: Final = "thalweg_handover_seconds"
_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900)
LOOPBACK: Final = "127.0.0.1"

# A function that returns each node's counters, by the node's name.
Counters = Callable[[], Mapping[str, Workers]]


@dataclass(frozen=True)
class RoundCounts:
    """The numbers of one round that the metrics count. ``states``: the state of each participant's update."""

    states: Sequence[str]
    bytes_down: int | None
    bytes_up: int | None
    seconds: float | None
    between_bytes: int | None = None
    completion_seconds: float | None = None
    accuracy: float | None = None
    loss: float | None = None

    @classmethod
    def of_outcome(cls, outcome: Outcome) -> RoundCounts:
        """Return the numbers of a round from its outcome."""
        fold = outcome.fold
        return cls(
            [part.state for part in outcome.participants],
            outcome.bytes_down,
            outcome.bytes_up,
            outcome.seconds,
            fold.between_bytes if isinstance(fold, TreeFold) else None,
            None if isinstance(fold, ReplyFold) else fold.completion_seconds,
        )

    @classmethod
    def of_entry(cls, entry: Entry) -> RoundCounts:
        """Return the numbers of a round, or of an iteration, from its entry in the journal."""
        fold = entry.get("fold")
        return cls(
            [part["state"] for part in entry["clients"]],
            entry["bytes_down"],
            entry["bytes_up"],
            entry["seconds"],
            fold["between_bytes"] if fold is not None and "between_bytes" in fold else None,
            completion_seconds(entry),
            entry["accuracy"],
            entry["loss"],
        )


class MetricsServer:
    """Serves the metrics of one process until ``close``."""

    def __init__(
        self,
        where: str,
        *,
        clients: Callable[[], Sequence[str]],
        nodes: Counters,
        expiries: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Listen at ``where``, PORT or HOST:PORT. ``clients`` returns the connected clients.

        ``expiries``: when each certificate expires, in seconds since 1970. Raises LinkError.
        """
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

        self._clients, self._nodes = clients, nodes
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._rounds = Counter("thalweg_rounds", "rounds that are over", registry=registry)
        self._updates = Counter("thalweg_updates", "updates by state", ["state"], registry=registry)
        self._bytes = Counter("thalweg_bytes", "bytes on links", ["direction"], registry=registry)
        self._seconds = Histogram("thalweg_round_seconds", "time of a round", buckets=_SECONDS, registry=registry)
        self._completion = Histogram(
            "thalweg_completion_seconds",
            "time from the first whole update to the mean",
            buckets=_SECONDS,
            registry=registry,
        )
        if expiries:
            family = Gauge(
                "thalweg_certificate_expiry_timestamp_seconds",
                "when a certificate expires",
                ["name"],
                registry=registry,
            )
            for name, at in expiries.items():
                family.labels(name).set(at)
        # Accuracy and loss of the last evaluation; empty before the first.
        self._model: dict[str, float] = {}
        registry.register(cast("Any", self))
        host, port = _host_and_port(where)
        pages = {"/metrics": lambda: _page(registry), "/health": lambda: (PLAIN, b"ok\n")}
        try:
            self._server = PageServer(host, port, pages)
        except OSError as error:
            raise LinkError(
                f"cannot serve metrics at {host}:{port}: {error.strerror or error}", "Take another port with --metrics"
            ) from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.port}/metrics"
        self._server.start()

    def round(self, done: RoundCounts) -> None:
        """Count a round."""
        self._rounds.inc()
        for state in done.states:
            self._updates.labels(state).inc()
        self._bytes.labels("down").inc(done.bytes_down or 0)
        self._bytes.labels("up").inc(done.bytes_up or 0)
        if done.between_bytes is not None:
            self._bytes.labels("between").inc(done.between_bytes)
        if done.seconds is not None:
            self._seconds.observe(done.seconds)
        if done.completion_seconds is not None:
            self._completion.observe(done.completion_seconds)
        if done.accuracy is not None:
            self._model["accuracy"] = done.accuracy
        if done.loss is not None:
            self._model["loss"] = done.loss

    def collect(self) -> Iterator[Any]:
        """Yield the metrics that are read only on request. Prometheus' registry calls this for each request."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for key, value in list(self._model.items()):
            yield GaugeMetricFamily(f"thalweg_{key}", f"{key} of the model when it was last evaluated", value=value)
        nodes: Mapping[str, Workers] = {}
        with suppress(_core.CoreError):  # the job is ending
            yield GaugeMetricFamily("thalweg_clients", "clients that are connected", value=len(self._clients()))
            nodes = self._nodes()
        if not nodes:
            return
        for name, (text, value_of, grows) in _OF_NODES.items():
            family = (CounterMetricFamily if grows else GaugeMetricFamily)(name, text, labels=["node"])
            for node, counters in nodes.items():
                family.add_metric([node], float(value_of(counters)))
            yield family
        text = "time from a node's note until its worker has the update"
        handovers = HistogramMetricFamily(_HANDOVER, text, labels=["node"])
        for node, counters in nodes.items():
            handovers.add_metric([node], *_histogram(counters.now))
        yield handovers

    def close(self) -> None:
        """Stop serving. Idempotent."""
        self._server.close()


@contextmanager
def exposing(
    where: str | None,
    note: Callable[[str], None],
    *,
    clients: Callable[[], Sequence[str]],
    nodes: Counters = dict,
    pki: str | None = None,
) -> Iterator[Callable[[RoundCounts], None]]:
    """Serve metrics at ``where`` until the block ends; yield a function that counts a round. None serves nothing.

    ``pki`` is the folder of the server's certificates. Raises LinkError, PlanError.
    """
    if where is None:
        yield lambda _done: None
        return
    expiries = {} if pki is None else own_expiries(Path(pki))
    server = MetricsServer(where, clients=clients, nodes=nodes, expiries=expiries)
    note(f"metrics: {server.url}")
    try:
        yield server.round
    finally:
        server.close()


def _page(registry: CollectorRegistry) -> tuple[str, bytes]:
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    return CONTENT_TYPE_LATEST, generate_latest(registry)


def _host_and_port(where: str) -> tuple[str, int]:
    """Return host and port of PORT or HOST:PORT, which the plan's check has accepted. Without HOST it is loopback."""
    host, _, port = where.rpartition(":")
    return host.strip("[]") or LOOPBACK, int(port)


def _histogram(now: Now) -> tuple[list[tuple[str, float]], float]:
    """Return the cumulative buckets of hand-over times, and their sum in seconds."""
    total, buckets = 0, []
    bounds = [*(f"{bound / 1e6:g}" for bound in now.handover_bounds_us), "+Inf"]
    for bound, count in zip(bounds, now.handover_counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets, now.handover_sum_us / 1e6
