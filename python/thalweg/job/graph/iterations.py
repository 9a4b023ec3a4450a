"""The iterations of a node on a graph: train the model, send it, wait for the neighbours' models, and mix.

``Turns`` holds the mixing weights of each iteration. The core's node does the sending, waiting and mixing.
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

# The weight of each neighbour in an iteration, by name, in the form that the core expects.
Weights = Mapping[str, float]


class CoreNode(Protocol):
    """The part of the core's node that an iteration uses."""

    @property
    def ahead(self) -> int: ...
    def begin(self, round: int, weights: str, then: str | None, to: Sequence[str] | None) -> None: ...  # noqa: A002 - the core's own word
    def ready(self, round: int) -> int: ...  # noqa: A002
    def wait(self, round: int, timeout: float | None) -> str | None: ...  # noqa: A002


class Swap(Protocol):
    """Replaces the model in the arena by what an algorithm sends, and turns the exchange's mean into the next model."""

    def before(self) -> None:
        """Put into the arena the values to send. Called after training."""

    def after(self, missing: Sequence[str], *, fresh: bool) -> None:
        """Put the mixed model into the arena. Called after the exchange, whose result the arena holds.

        ``missing`` are the neighbours whose model did not arrive as a whole. ``fresh``: the node has not taken part in
        the iterations before.
        """


class Models:
    """D-PSGD: nodes send their models themselves, and the exchange's mean is the next model."""

    def before(self) -> None:
        """Change nothing."""

    def after(self, missing: Sequence[str], *, fresh: bool) -> None:
        """Change nothing."""


@dataclass(frozen=True)
class Turns:
    """A node's mixing weights in each iteration.

    ``by_turns`` has the weights for each graph of a cycle; a graph that never changes is a cycle of one. If the graph
    is drawn anew in each iteration, ``drawn`` computes the weights. ``sends`` has the nodes to send to, in the same
    cycle. If it is empty, the node sends to the nodes whose models it takes.
    """

    by_turns: Sequence[Weights] = ()
    drawn: Callable[[int], Weights] | None = None
    sends: Sequence[Sequence[str]] = ()

    def at(self, iteration: int) -> Weights:
        """Return the weights of ``iteration``, counted from 1."""
        if self.drawn is not None:
            return self.drawn(iteration)
        return self.by_turns[(iteration - 1) % len(self.by_turns)]

    def to(self, iteration: int) -> Sequence[str] | None:
        """Return the nodes to which this node sends in ``iteration``; None means those whose models it takes."""
        return self.sends[(iteration - 1) % len(self.sends)] if self.sends else None

    def core_weights(self, iteration: int, ahead: int) -> tuple[str, str | None]:
        """Return, as JSON, the weights of ``iteration`` and a list of those of the iterations after it.

        The list is None if the weights never change. The core accepts chunks of ``ahead`` iterations beyond the current
        one. Between two iterations the next one counts as current, so the list has ``ahead`` + 1 entries.
        """
        then = [self.at(iteration + later) for later in range(1, ahead + 2)] if self.changes else None
        return wire.encode(self.at(iteration)), None if then is None else wire.encode(then)

    @property
    def changes(self) -> bool:
        """Whether the weights may differ from one iteration to the next."""
        return self.drawn is not None or len(self.by_turns) > 1


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
        """Return its line for the record. The node's times plus ``clock`` seconds are times on the run's clock."""
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


def turns_of(schedule: Schedule, names: Sequence[str], me: str, rule: mixing.Rule) -> Turns:
    """Return the turns of node ``me``. Its index in ``names`` is its index in the graph."""
    place = names.index(me)

    def weights(iteration: int) -> Weights:
        return weights_of(schedule.at(iteration), names, place, rule)

    if schedule.period is None:
        return Turns(drawn=weights)
    period = range(1, schedule.period + 1)
    sends: Sequence[Sequence[str]] = ()
    if not schedule.at(1).is_mutual:
        sends = [[names[node] for node in schedule.at(iteration).sends[place]] for iteration in period]
    return Turns([weights(iteration) for iteration in period], sends=sends)


def weights_of(exchange: Exchange, names: Sequence[str], place: int, rule: mixing.Rule) -> Weights:
    """Return the numbers from which the core computes the mixing weights of one node, by name.

    They are the Metropolis-Hastings weights of the neighbours. With "renormalise" the node's own weight is among them,
    because the core scales the weights of the models that arrived to a sum of 1. With "paper" the core takes the
    neighbours' degrees instead, as 1 / (1 + degree).
    """
    if rule == "paper":
        return {names[node]: 1.0 / (1 + len(exchange.hears[node])) for node in exchange.hears[place]}
    row = mixing.metropolis_row(exchange, place)
    return {names[node]: weight for node, weight in row.items() if node != place or rule == "renormalise"}


def iterate(
    node: CoreNode,
    peer: Peer,
    turns: Turns,
    rounds: int,
    *,
    config: Callable[[int], ReceivedConfig],
    tests: Callable[[int], bool],
    first: int = 1,
    swap: Swap | None = None,
) -> Iterator[Iteration]:
    """Run iterations ``first`` to ``rounds`` and yield each as it ends. A node that falls behind may skip some.

    ``config`` returns an iteration's config for training, and ``tests`` whether to evaluate after it. ``swap`` replaces
    the models by what an algorithm sends. Raises CoreError if a neighbour refuses this node, MetricsError for a value
    that is not a metric, and whatever the app raises.
    """
    now = [first]

    def numbers() -> Iterable[int]:
        while now[0] <= rounds:
            yield now[0]

    def step(number: int) -> Iteration:
        done = _step(node, peer, turns, number, config=config(number), tests=tests, swap=swap or Models())
        now[0] = done.report.next
        return done

    return algorithms.find(algorithms.ON_GRAPHS).rounds(step, numbers())


def _step(
    node: CoreNode,
    peer: Peer,
    turns: Turns,
    number: int,
    *,
    config: ReceivedConfig,
    tests: Callable[[int], bool],
    swap: Swap,
) -> Iteration:
    weights, then = turns.core_weights(number, node.ahead)
    node.begin(number, weights, then, turns.to(number))
    weight, metrics = peer.train(config)
    samples = int(weight)
    before = peer.sketch()
    swap.before()
    sent = node.ready(number)
    report = report_of(wire.plain(_waited(node, sent)))
    swap.after(report.incomplete, fresh=report.fresh)
    mixed = time.monotonic()
    after = peer.sketch()
    evaluation = _evaluation(peer, report, mixed) if tests(sent) else None
    return Iteration(sent, report, samples, returned("train", metrics), evaluation, before, after)


def _waited(node: CoreNode, number: int) -> str:
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
