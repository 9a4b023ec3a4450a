"""The data and the model: y = 2 x0 - 3 x1 + 0.5, and steps of gradient descent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SAMPLES = 64
TRUE_WEIGHTS = np.array([2.0, -3.0], np.float32)
TRUE_BIAS = 0.5


class Data:
    """Samples of one partition: inputs (n, 2) and targets (n,), float32."""

    def __init__(self, partition: int, seed: int) -> None:
        rng = np.random.default_rng((seed, partition))
        count = SAMPLES + 8 * partition  # so that clients have different weights
        self.inputs = rng.standard_normal((count, 2), dtype=np.float32)
        noise = 0.01 * rng.standard_normal(count, dtype=np.float32)
        self.targets = self.inputs @ TRUE_WEIGHTS + np.float32(TRUE_BIAS) + noise

    def __len__(self) -> int:
        return len(self.targets)


class Model:
    """A linear model; ``steps`` counts the steps of training, as PyTorch's batch normalisation counts batches."""

    def __init__(self) -> None:
        self.weights: NDArray[np.float32] = np.zeros(2, np.float32)
        self.bias: NDArray[np.float32] = np.zeros((), np.float32)
        self.steps: NDArray[np.int64] = np.zeros((), np.int64)

    def state(self) -> dict[str, NDArray[np.generic]]:
        return {"weights": self.weights, "bias": self.bias, "steps": self.steps}

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        self.weights = np.array(state["weights"], np.float32)
        self.bias = np.array(state["bias"], np.float32)
        self.steps = np.array(state["steps"], np.int64)

    def errors(self, data: Data) -> NDArray[np.float32]:
        return np.asarray(data.inputs @ self.weights + self.bias - data.targets, np.float32)

    def loss(self, data: Data) -> float:
        return float(np.mean(self.errors(data) ** 2))

    def train(self, data: Data, learning_rate: float, steps: int = 10) -> None:
        for _ in range(steps):
            errors = self.errors(data)
            self.weights -= np.float32(learning_rate) * (data.inputs.T @ errors / len(data)).astype(np.float32)
            self.bias -= np.float32(learning_rate) * errors.mean(dtype=np.float32)
            self.steps += 1
