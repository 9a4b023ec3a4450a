"""q-FedAvg: clients with a larger loss count more, so that the model serves all of them more evenly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite
from typing import Final

from thalweg.algorithms import fedavgm
from thalweg.algorithms.algorithm import NEEDS_SERVER, Algorithm
from thalweg.algorithms.client_step import ClientStep, Received
from thalweg.algorithms.server_step import Rule, Values, positive_metric
from thalweg.algorithms.settings import Settings, required
from thalweg.errors import MetricsError
from thalweg.outcome.core import Participant

SETTINGS: Final[Settings] = {"q": 0.2, "lipschitz": None}
#: The metrics in which a client reports the loss before its training, and h of the paper.
LOSS: Final = "qfedavg_loss"
STEP: Final = "qfedavg_h"
#: Added to each loss, so that a loss of 0 has a finite power.
LOSS_OFFSET: Final = 1e-10


class LossWeighted:
    """Weighs a client's update by the loss of the received model on the client's data."""

    def __init__(
        self, received: Received, measure: Callable[[], Mapping[str, object]], q: float, lipschitz: float
    ) -> None:
        self._received, self._measure, self._q, self._lipschitz = received, measure, q, lipschitz
        self._loss = 0.0

    def before(self) -> None:
        loss = self._measure().get("loss")
        if not isinstance(loss, (int, float)) or not isfinite(loss) or loss < 0:
            raise MetricsError(
                f"evaluate() returned loss = {loss!r}, and qfedavg weighs the update by it",
                "Return a loss that is not negative as metric 'loss'",
            )
        self._loss = float(loss) + LOSS_OFFSET
        self._received.copy()

    def after(self, samples: float, metrics: Mapping[str, object]) -> tuple[float, Mapping[str, object]]:
        del samples
        try:
            weight = self._loss**self._q
            square = self._lipschitz**2 * self._received.squared_change()
            h = self._q * self._loss ** (self._q - 1) * square + self._lipschitz * weight
        except OverflowError:
            weight = h = inf
        if not (0 < weight < inf and 0 < h < inf):
            raise MetricsError(
                f"the update's weight is {weight:g} and its h is {h:g}, of loss {self._loss:g} with q = {self._q:g}",
                "Lower algorithm.q, so that the loss to this power is a positive finite number",
            )
        return weight, {**metrics, LOSS: self._loss, STEP: h}


def client(settings: Settings, received: Received, measure: Callable[[], Mapping[str, object]]) -> ClientStep:
    """Return the client's part of a round."""
    return LossWeighted(received, measure, required(settings, "q"), required(settings, "lipschitz"))


def scale(settings: Settings) -> Callable[[Sequence[Participant]], float]:
    """Return the function that computes the factor of the mean: Lipschitz constant * sum of weights / sum of h."""

    def factor(participants: Sequence[Participant]) -> float:
        weights = sum(float(one.samples or 0) for one in participants)
        return required(settings, "lipschitz") * weights / sum(positive_metric(one, STEP) for one in participants)

    return factor


def rule(values: Sequence[Values], settings: Settings) -> Rule:
    """Return the server's rule: subtract the gradient, which ``scale`` has multiplied by the step size."""
    del settings
    return fedavgm.SGD(values, 1.0)


ALGORITHM: Final = Algorithm(
    name="qfedavg",
    meaning=(
        "the weight of an update is the client's loss before the round to the power of `algorithm.q`, and the server's "
        "step shrinks where updates are large; q = 0 counts all clients alike"
    ),
    source="Li et al. 2020 (q-FFL), algorithm 2, with 1e-10 added to each loss as Flower does",
    refused=NEEDS_SERVER,
    settings=SETTINGS,
    rule=rule,
    scale=scale,
    client=client,
)
