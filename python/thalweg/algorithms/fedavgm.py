"""FedAvgM: the server keeps a momentum of the rounds' gradients. With Nesterov's momentum it is DiLoCo's outer step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from thalweg.algorithms.algorithm import SERVED, Algorithm
from thalweg.algorithms.server_step import Kept, Rule, Values
from thalweg.algorithms.settings import Settings, of

SETTINGS: Final[Settings] = {"server_learning_rate": 1.0, "server_momentum": 0.9, "nesterov": False}


class SGD:
    """Stochastic gradient descent as ``torch.optim.SGD`` defines it, in NumPy: v <- momentum v + g, x <- x - rate v.

    With ``nesterov`` x <- x - rate (g + momentum v). Apps of NumPy arrays thus need no PyTorch.
    """

    name = "SGD"

    def __init__(
        self, values: Sequence[Values], learning_rate: float, momentum: float = 0.0, *, nesterov: bool = False
    ) -> None:
        self._values, self._rate, self._momentum, self._nesterov = values, learning_rate, momentum, nesterov
        self._kept = Kept(values, **({"momentum_buffer": 0.0} if momentum else {}))

    def step(self, gradients: Sequence[Values]) -> None:
        if not self._momentum:
            for value, gradient in zip(self._values, gradients, strict=True):
                np.subtract(value, self._rate * gradient, out=value)
            return
        for value, gradient, buffer in zip(self._values, gradients, self._kept["momentum_buffer"], strict=True):
            np.multiply(buffer, self._momentum, out=buffer)
            np.add(buffer, gradient, out=buffer)
            step = gradient + self._momentum * buffer if self._nesterov else buffer
            np.subtract(value, self._rate * step, out=value)

    def state(self) -> Mapping[str, Values]:
        return self._kept.state()

    def load(self, state: Mapping[str, Values]) -> None:
        self._kept.load(state)


def rule(values: Sequence[Values], settings: Settings) -> Rule:
    """Return the server's rule."""
    rate, momentum = of(settings, "server_learning_rate"), of(settings, "server_momentum")
    return SGD(values, rate, momentum, nesterov=bool(settings["nesterov"]))


ALGORITHM: Final = Algorithm(
    name="fedavgm",
    meaning=(
        "as fedavg, but the server adds a momentum of earlier rounds to what the mean changes, Nesterov's with "
        "`algorithm.nesterov`, which is the outer step of DiLoCo"
    ),
    source="Hsu, Qi and Brown 2019, section 4; Douillard et al. 2023 (DiLoCo), algorithm 1",
    refused=SERVED,
    settings=SETTINGS,
    rule=rule,
)
