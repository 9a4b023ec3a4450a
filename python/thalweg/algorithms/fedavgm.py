"""FedAvgM: SGD with momentum at the server. With Nesterov's momentum it is the outer step of DiLoCo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from thalweg.algorithms.algorithm import NEEDS_SERVER, Algorithm
from thalweg.algorithms.server_step import ArrayState, Rule, Values
from thalweg.algorithms.settings import Settings, required

SETTINGS: Final[Settings] = {"server_learning_rate": 1.0, "server_momentum": 0.9, "nesterov": False}


class SGD:
    """Stochastic gradient descent in NumPy, as ``torch.optim.SGD`` defines it: v <- momentum v + g, x <- x - rate v.

    With ``nesterov`` it is x <- x - rate (g + momentum v). It is here so that apps of NumPy arrays need no PyTorch.
    """

    name = "SGD"

    def __init__(
        self, values: Sequence[Values], learning_rate: float, momentum: float = 0.0, *, nesterov: bool = False
    ) -> None:
        self._values, self._rate, self._momentum, self._nesterov = values, learning_rate, momentum, nesterov
        self._state = ArrayState(values, **({"momentum_buffer": 0.0} if momentum else {}))

    def step(self, gradients: Sequence[Values]) -> None:
        if not self._momentum:
            for value, gradient in zip(self._values, gradients, strict=True):
                np.subtract(value, self._rate * gradient, out=value)
            return
        for value, gradient, buffer in zip(self._values, gradients, self._state["momentum_buffer"], strict=True):
            np.multiply(buffer, self._momentum, out=buffer)
            np.add(buffer, gradient, out=buffer)
            step = gradient + self._momentum * buffer if self._nesterov else buffer
            np.subtract(value, self._rate * step, out=value)

    def state(self) -> Mapping[str, Values]:
        return self._state.state()

    def load(self, state: Mapping[str, Values]) -> None:
        self._state.load(state)


def rule(values: Sequence[Values], settings: Settings) -> Rule:
    """Return the server's rule."""
    rate, momentum = required(settings, "server_learning_rate"), required(settings, "server_momentum")
    return SGD(values, rate, momentum, nesterov=bool(settings["nesterov"]))


ALGORITHM: Final = Algorithm(
    name="fedavgm",
    meaning=(
        "as fedavg, but the server moves the model with momentum; with `algorithm.nesterov` it is Nesterov's, which is "
        "the outer step of DiLoCo"
    ),
    source="Hsu, Qi and Brown 2019, section 4; Douillard et al. 2023 (DiLoCo), algorithm 1",
    refused=NEEDS_SERVER,
    settings=SETTINGS,
    rule=rule,
)
