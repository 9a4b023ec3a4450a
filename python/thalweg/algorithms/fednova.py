"""FedNova: clients may take different numbers of steps. A client that takes more does not pull the model its way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Final

from thalweg.algorithms import fedavgm
from thalweg.algorithms.algorithm import NEEDS_SERVER, Algorithm
from thalweg.algorithms.client_step import ClientStep, Received
from thalweg.algorithms.server_step import Rule, Values, positive_metric
from thalweg.algorithms.settings import Settings, required
from thalweg.errors import MetricsError
from thalweg.outcome.core import Participant

NAME: Final = "fednova"
SETTINGS: Final[Settings] = {"server_learning_rate": 1.0, "server_momentum": 0.0, "nesterov": False}
#: The metric in which a client reports the l1 norm of the paper's a_i. With plain SGD it is the number of its steps.
NORM: Final = "fednova_norm"


def norm(steps: int, momentum: float) -> float:
    """Return the l1 norm of a_i after so many ``steps`` of SGD with ``momentum`` (section 4.1 of the paper)."""
    rest = 1.0 - momentum
    return (steps - momentum * (1.0 - momentum**steps) / rest) / rest


class Normalised:
    """Divides a client's update by the norm that its training reports."""

    def __init__(self, received: Received) -> None:
        self._received = received

    def before(self) -> None:
        self._received.copy()

    def after(self, samples: float, metrics: Mapping[str, object]) -> tuple[float, Mapping[str, object]]:
        value = metrics.get(NORM)
        if not isinstance(value, (int, float)) or not isfinite(value) or value <= 0:
            raise MetricsError(
                f"train() returned {NORM} = {value!r}, and fednova divides the update by it",
                f"Return the number of local steps of plain SGD as metric {NORM!r}",
            )
        self._received.scale_change(1.0 / value)
        return samples, metrics


def client(settings: Settings, received: Received, measure: Callable[[], Mapping[str, object]]) -> ClientStep:
    """Return the client's part of a round."""
    del settings, measure
    return Normalised(received)


def scale(settings: Settings) -> Callable[[Sequence[Participant]], float]:
    """Return the function that computes the factor of the mean: the clients' mean norm, weighted by samples."""
    del settings

    def factor(participants: Sequence[Participant]) -> float:
        weights = [float(one.samples or 0) for one in participants]
        norms = [positive_metric(one, NORM) for one in participants]
        return sum(w * a for w, a in zip(weights, norms, strict=True)) / sum(weights)

    return factor


def rule(values: Sequence[Values], settings: Settings) -> Rule:
    """Return the server's rule."""
    return fedavgm.rule(values, {key: required(settings, key) for key in SETTINGS})


ALGORITHM: Final = Algorithm(
    name=NAME,
    meaning=(
        "each client divides its update by its number of local steps, and the server multiplies the mean by "
        "their mean number; so clients of different speed may do different numbers of steps"
    ),
    source="Wang et al. 2020, equation 5 and section 4, with tau_eff = sum of p_i |a_i|",
    refused=NEEDS_SERVER,
    settings=SETTINGS,
    rule=rule,
    scale=scale,
    client=client,
)
