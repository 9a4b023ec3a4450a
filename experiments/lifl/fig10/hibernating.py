"""Clients that rest before each update, as the paper's mobile clients, which hibernate for up to 60 s."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Tensors = dict[str, npt.NDArray[np.float32]]


class Hibernating:
    """An app whose clients rest for a random time and send the model back.

    ``longest`` is the longest rest in seconds. The model has ``elements`` values of 4 bytes.
    """

    def __init__(self, longest: float, elements: int) -> None:
        self._longest, self._elements = longest, elements

    def model(self) -> Tensors:
        """Return a model of zeros."""
        return {"weights": np.zeros(self._elements, np.float32)}

    def train(self, model: Tensors, data: object, config: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
        """Rest. thalweg has seeded the random generator by job, client and round."""
        del model, data, config
        time.sleep(random.uniform(0.0, self._longest))
        return 1, {}
