"""FedYogi: the server's optimizer is Yogi, which ``torch.optim`` does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from thalweg.algorithms.algorithm import NEEDS_SERVER, Algorithm
from thalweg.algorithms.server_step import ArrayState, Rule, Values
from thalweg.algorithms.settings import Settings, required

SETTINGS: Final[Settings] = {"server_learning_rate": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}


class Yogi:
    """Yogi: m <- b1 m + (1 - b1) g, v <- v - (1 - b2) g^2 sign(v - g^2), x <- x - rate m / (sqrt(v) + tau)."""

    name = "Yogi"

    def __init__(self, values: Sequence[Values], learning_rate: float, beta1: float, beta2: float, tau: float) -> None:
        self._values, self._rate, self._beta1, self._beta2, self._tau = values, learning_rate, beta1, beta2, tau
        self._state = ArrayState(values, m=0.0, v=tau * tau)

    def step(self, gradients: Sequence[Values]) -> None:
        for value, gradient, m, v in zip(self._values, gradients, self._state["m"], self._state["v"], strict=True):
            np.add(m, (1 - self._beta1) * (gradient - m), out=m)
            square = gradient * gradient
            np.subtract(v, (1 - self._beta2) * square * np.sign(v - square), out=v)
            np.subtract(value, self._rate * m / (np.sqrt(v) + self._tau), out=value)

    def state(self) -> Mapping[str, Values]:
        return self._state.state()

    def load(self, state: Mapping[str, Values]) -> None:
        self._state.load(state)


def rule(values: Sequence[Values], settings: Settings) -> Rule:
    """Return the server's rule."""
    return Yogi(values, *(required(settings, key) for key in ("server_learning_rate", "beta1", "beta2", "tau")))


ALGORITHM: Final = Algorithm(
    name="fedyogi",
    meaning=(
        "as fedavg, but the server's step towards the mean is Yogi's, whose step sizes change more slowly than Adam's"
    ),
    source="Reddi et al. 2021, algorithm 2; v begins as tau squared",
    refused=NEEDS_SERVER,
    settings=SETTINGS,
    rule=rule,
)
