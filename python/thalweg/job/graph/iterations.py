"""The iterations of a node on a graph: train the model, send it, wait for the neighbours' models, and mix.

The core's node does the sending, waiting and mixing. ``IterationWeights`` has the weights by which it mixes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from thalweg import algorithms, wire
from thalweg.apps.metrics import evaluated, returned
from thalweg.apps.received_config import ReceivedConfig
from thalweg.graphs import mixing
from thalweg.job.graph.lines import Evaluation, Finished, report_of
from thalweg.outcome.core import IterationReport
from thalweg.record.nodes import packed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from thalweg.graphs import Exchange, Schedule
    from thalweg.job.graph.peer import Peer

# The weights of the neighbours in one iteration, by name, in the form that the core expects.
Weights = Mapping[str, float]


class CoreNode(Protocol):
    """The part of the core's node that an iteration uses."""

    @property
    def ahead(self) -> int: ...
    def begin(self, round: int, weights: str, then: str | None, to: Sequence[str] | None) -> None: ...  # noqa: A002 - the core's own word
    def ready(self, round: int) -> int: ...  # noqa: A002
    def wait(self, round: int, timeout: float | None) -> str | None: ...  # noqa: A002


class Swap(Protocol):
    """Replaces the model in the arena by what an algorithm sends, and then the exchange's mean by the next model."""

    def before(self) -> None:
        """Put into the arena the values to send. Called after training."""

    def after(self, missing: Sequence[str], *, fresh: bool) -> None:
        """Put the next model into the arena. Called after the exchange, when the arena has its mean.

        ``missing`` are the neighbours whose values did not all arrive. ``fresh``: the node has not taken part in the
        iterations before.
        """


class Models:
    """D-PSGD: nodes send their models as they are, and the exchange's mean is the next model."""

    def before(self) -> None:
        """Change nothing."""

    def after(self, missing: Sequence[str], *, fresh: bool) -> None:
        """Change nothing."""


@dataclass(frozen=True)
class IterationWeights:
    """A node's mixing weights in each iteration.

    If the graph repeats after some iterations, ``cycle`` has the weights of each of these; a graph that never changes
    has a cycle of one. If the graph is drawn anew in each iteration, ``drawn`` computes the weights. ``sends`` has the
    nodes to send to, for each iteration of the cycle. If it is empty, the node sends to those from which it receives.
    """

    cycle: Sequence[Weights] = ()
    drawn: Callable[[int], Weights] | None = None
    sends: Sequence[Sequence[str]] = ()

    def at(self, iteration: int) -> Weights:
        """Return the weights of ``iteration``, counted from 1."""
        if self.drawn is not None:
            return self.drawn(iteration)
        return self.cycle[(iteration - 1) % len(self.cycle)]

    def to(self, iteration: int) -> Sequence[str] | None:
        """Return the nodes to which this node sends in ``iteration``; None: to those from which it receives."""
        return self.sends[(iteration - 1) % len(self.sends)] if self.sends else None

    def core_weights(self, iteration: int, ahead: int) -> tuple[str, str | None]:
        """Return as JSON the weights of ``iteration``, and a list of those of the following iterations.

        The list is None if the weights never change. The core accepts chunks of up to ``ahead`` iterations beyond the
        current one. Between two iterations the next one already counts as current, so the list has ``ahead`` + 1
        entries.
        """
        then = [self.at(iteration + later) for later in range(1, ahead + 2)] if self.changes else None
        return wire.encode(self.at(iteration)), None if then is None else wire.encode(then)

    @property
    def changes(self) -> bool:
        """Whether the weights may differ from one iteration to the next."""
        return self.drawn is not None or len(self.cycle) > 1


@dataclass(frozen=True)
class Iteration:
    """One iteration of one node.

    ``before`` and ``after`` are sketches of the model before and after mixing, shape (64,).
    """

    number: int
    report: IterationReport
    samples: int
    metrics: Mapping[str, object]
    evaluation: Evaluation | None
    before: NDArray[np.float64]
    after: NDArray[np.float64]

    def line(self, clock: float) -> Finished:
        """Return the line that the node writes. Adding ``clock`` to the node's times gives times on the run's clock."""
        return Finished(
            number=self.number,
            report=self.report,
            clock=clock,
            skipped=self.report.skipped,
            samples=self.samples,
            metrics=self.metrics,
            evaluation=self.evaluation,
            before=packed(self.before),
            after=packed(self.after),
        )


def iteration_weights_of(schedule: Schedule, names: Sequence[str], me: str, rule: mixing.Rule) -> IterationWeights:
    """Return the weights of node ``me``. ``names`` has all nodes in the order of the graph."""
    place = names.index(me)

    def weights(iteration: int) -> Weights:
        return weights_of(schedule.at(iteration), names, place, rule)

    if schedule.period is None:
        return IterationWeights(drawn=weights)
    period = range(1, schedule.period + 1)
    sends: Sequence[Sequence[str]] = ()
    if not schedule.at(1).is_mutual:
        sends = [[names[node] for node in schedule.at(iteration).sends[place]] for iteration in period]
    return IterationWeights([weights(iteration) for iteration in period], sends=sends)


def weights_of(exchange: Exchange, names: Sequence[str], place: int, rule: mixing.Rule) -> Weights:
    """Return by name the numbers from which the core computes the mixing weights of the node at ``place``.

    They are the Metropolis-Hastings weights of its neighbours. With "renormalise" the node's own weight is among them,
    because the core then scales the weights of the models that have arrived to a sum of 1. With "paper" they are
    1 / (1 + degree) of each neighbour instead.
    """
    if rule == "paper":
        return {names[node]: 1.0 / (1 + len(exchange.hears[node])) for node in exchange.hears[place]}
    row = mixing.metropolis_row(exchange, place)
    return {names[node]: weight for node, weight in row.items() if node != place or rule == "renormalise"}


def iterate(
    node: CoreNode,
    peer: Peer,
    weights: IterationWeights,
    rounds: int,
    *,
    config: Callable[[int], ReceivedConfig],
    evaluates_after: Callable[[int], bool],
    first: int = 1,
    swap: Swap | None = None,
) -> Iterator[Iteration]:
    """Run iterations ``first`` to ``rounds`` and yield each as it ends. A node that has fallen behind skips some.

    ``config`` returns an iteration's config for training, and ``evaluates_after`` whether to evaluate after it.
    ``swap`` replaces models by what an algorithm sends. Raises CoreError if a neighbour refuses this node, MetricsError
    for a value that is not a metric, and whatever the app raises.
    """
    now = [first]

    def numbers() -> Iterable[int]:
        while now[0] <= rounds:
            yield now[0]

    def step(number: int) -> Iteration:
        done = _step(
            node,
            peer,
            weights,
            number,
            config=config(number),
            evaluates_after=evaluates_after,
            swap=swap or Models(),
        )
        now[0] = done.report.next
        return done

    return algorithms.find(algorithms.GRAPH_DEFAULT).rounds(step, numbers())


def _step(
    node: CoreNode,
    peer: Peer,
    weights: IterationWeights,
    number: int,
    *,
    config: ReceivedConfig,
    evaluates_after: Callable[[int], bool],
    swap: Swap,
) -> Iteration:
    current, then = weights.core_weights(number, node.ahead)
    node.begin(number, current, then, weights.to(number))
    weight, metrics = peer.train(config)
    samples = int(weight)
    before = peer.sketch()
    swap.before()
    sent = node.ready(number)
    report = report_of(wire.plain(_report_text(node, sent)))
    swap.after(report.incomplete, fresh=report.fresh)
    mixed = time.monotonic()
    after = peer.sketch()
    evaluation = _evaluation(peer, report, mixed) if evaluates_after(sent) else None
    return Iteration(sent, report, samples, returned("train", metrics), evaluation, before, after)


def _report_text(node: CoreNode, number: int) -> str:
    while True:
        report = node.wait(number, None)
        if report is not None:
            return report


def _evaluation(peer: Peer, report: IterationReport, mixed: float) -> Evaluation | None:
    begin = time.monotonic()
    metrics = returned("evaluate", peer.evaluate())
    end = time.monotonic()
    if not metrics:
        return None
    at = report.mixed_at + end - mixed
    return Evaluation(end - begin, at, metrics, **evaluated(metrics))
