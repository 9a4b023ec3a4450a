"""A node's way through a job: begin, train, send, wait, mix, again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from thalweg import algorithms
from thalweg.apps.metrics import evaluated, returned
from thalweg.graphs import mixing
from thalweg.record.nodes import packed

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from thalweg.graphs import Exchange, Schedule
    from thalweg.job.peer import Peer

# A node's neighbours in an iteration, each with its weight, as the core takes them.
Weights = Mapping[str, float]


class CoreNode(Protocol):
    """What of the core's node an iteration needs."""

    @property
    def ahead(self) -> int: ...
    def begin(self, round: int, weights: str, then: str | None, to: Sequence[str] | None) -> None: ...  # noqa: A002 - the core's own word
    def ready(self, round: int) -> int: ...  # noqa: A002
    def wait(self, round: int, timeout: float | None) -> str | None: ...  # noqa: A002


class Swap(Protocol):
    """What travels in the place of the model, and what becomes of what the exchange makes of it."""

    def before(self) -> None:
        """Put into the arena what is to be sent, after training."""

    def after(self, report: Mapping[str, Any]) -> None:
        """Put the model back, mixed; the arena has what the exchange came to."""


class Models:
    """D-PSGD: the models themselves travel, and the exchange gives their mean."""

    def before(self) -> None:
        """Change nothing."""

    def after(self, report: Mapping[str, Any]) -> None:
        """Change nothing."""


@dataclass(frozen=True)
class Turns:
    """A node's weights of each iteration: of one graph, of several by turns, or of one that is drawn.

    ``sends`` has whom it sends to, by turns likewise. Empty, it sends to those whose models it takes.
    """

    by_turns: Sequence[Weights] = ()
    drawn: Callable[[int], Weights] | None = None
    sends: Sequence[Sequence[str]] = ()

    def at(self, iteration: int) -> Weights:
        """Return the weights of ``iteration``, from 1."""
        if self.drawn is not None:
            return self.drawn(iteration)
        return self.by_turns[(iteration - 1) % len(self.by_turns)]

    def to(self, iteration: int) -> Sequence[str] | None:
        """Return whom the node sends to in ``iteration``; None if to those whose models it takes."""
        return self.sends[(iteration - 1) % len(self.sends)] if self.sends else None

    def told(self, iteration: int, ahead: int) -> tuple[str, str | None]:
        """Return the weights of ``iteration`` and those of the iterations after it, as the core takes them.

        ``ahead``: the core keeps chunks of so many iterations after its own, and of one more between two iterations.
        """
        then = [self.at(iteration + later) for later in range(1, ahead + 2)] if self.changes else None
        return json.dumps(self.at(iteration)), None if then is None else json.dumps(then)

    @property
    def changes(self) -> bool:
        """Whether iterations differ."""
        return self.drawn is not None or len(self.by_turns) > 1


@dataclass(frozen=True)
class Iteration:
    """One iteration of one node.

    ``report`` is the core's: times in seconds of the node's clock, what came of whom (docs/reference/outcome.md).
    ``evaluation`` has ``accuracy``, ``loss``, ``seconds``, ``at`` and all ``metrics``, or is None. ``before`` and
    ``after`` are sketches of the model around mixing, shape (64,).
    """

    number: int
    report: Mapping[str, Any]
    samples: int
    metrics: Mapping[str, Any]
    evaluation: Mapping[str, Any] | None
    before: NDArray[np.float64]
    after: NDArray[np.float64]

    def line(self, clock: float) -> dict[str, Any]:
        """Return what the record keeps of it; ``clock`` is added to the node's times."""
        return {
            "number": self.number,
            "report": self.report,
            "clock": clock,
            "skipped": self.report["skipped"],
            "samples": self.samples,
            "metrics": self.metrics,
            "evaluation": self.evaluation,
            "before": packed(self.before),
            "after": packed(self.after),
        }


def turns_of(schedule: Schedule, names: Sequence[str], me: str, rule: mixing.Rule) -> Turns:
    """Return the turns of node ``me``, whose place in the graph is that among ``names``."""
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
    """Return the Metropolis-Hastings weights of one node's neighbours.

    To scale what came to a sum of 1, the core has to know the node's own weight, under its own name. For the paper's
    weights it has to know the neighbours' degrees, as 1 / (1 + degree).
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
    config: Callable[[int], Mapping[str, Any]],
    tests: Callable[[int], bool],
    first: int = 1,
    swap: Swap | None = None,
) -> Iterator[Iteration]:
    """Run iterations ``first`` to ``rounds`` and yield each as it ends; some may be skipped, as the core says.

    ``config`` is what training is told, ``tests`` whether the model is evaluated after an iteration, ``swap`` what
    travels if not the models. Raises CoreError
    if a neighbour refuses this node, MetricsError for what is no metric, and what the app raises.
    """
    now = [first]

    def numbers() -> Iterable[int]:
        while now[0] <= rounds:
            yield now[0]

    def step(number: int) -> Iteration:
        done = _step(node, peer, turns, number, config=config(number), tests=tests, swap=swap or Models())
        now[0] = int(done.report["next"])
        return done

    return algorithms.find(algorithms.ON_GRAPHS).rounds(step, numbers())


def _step(
    node: CoreNode,
    peer: Peer,
    turns: Turns,
    number: int,
    *,
    config: Mapping[str, Any],
    tests: Callable[[int], bool],
    swap: Swap,
) -> Iteration:
    weights, then = turns.told(number, node.ahead)
    node.begin(number, weights, then, turns.to(number))
    samples, metrics = peer.train(config)
    before = peer.sketch()
    swap.before()
    sent = node.ready(number)
    report: dict[str, Any] = json.loads(_waited(node, sent))
    swap.after(report)
    mixed = time.monotonic()
    after = peer.sketch()
    evaluation = _evaluation(peer, report, mixed) if tests(sent) else None
    return Iteration(sent, report, samples, returned("train", metrics), evaluation, before, after)


def _waited(node: CoreNode, number: int) -> str:
    while True:
        report = node.wait(number, None)
        if report is not None:
            return report


def _evaluation(peer: Peer, report: Mapping[str, Any], mixed: float) -> dict[str, Any] | None:
    begin = time.monotonic()
    metrics = returned("evaluate", peer.evaluate())
    end = time.monotonic()
    if not metrics:
        return None
    at = report["mixed_at"] + end - mixed
    return {**evaluated(metrics), "seconds": end - begin, "at": at, "metrics": metrics}
