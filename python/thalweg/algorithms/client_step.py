"""The client's part of an algorithm: what a client does before its training, and to its update and weight after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from thalweg.algorithms.server_step import Values
from thalweg.algorithms.settings import Settings
from thalweg.tensors.arena import Arena


class ClientStep(Protocol):
    """The client's part of an algorithm in one round."""

    def before(self) -> None:
        """Prepare. Called before the training, when the arena has the received model."""

    def after(self, samples: float, metrics: Mapping[str, object]) -> tuple[float, Mapping[str, object]]:
        """Change the update in the arena; return its weight and the metrics. Called after the training."""


class Received:
    """A copy of a model's tensors as they were received, beside the arena in which they are trained."""

    def __init__(self, arena: Arena, names: list[str]) -> None:
        self._arena, self._names = arena, names
        self._start: list[Values] = []

    def copy(self) -> None:
        """Copy the received tensors."""
        self._start = [self._arena[name].copy() for name in self._names]

    def scale_change(self, factor: float) -> None:
        """Multiply the change that training has made by ``factor``."""
        for name, start in zip(self._names, self._start, strict=True):
            trained = self._arena[name]
            trained[...] = start + factor * (trained.astype(_wide(start)) - start)

    def squared_change(self) -> float:
        """Return the squared norm of the change that training has made."""
        return float(
            sum(
                np.square(self._arena[name].astype(np.float64) - start.astype(np.float64)).sum()
                for name, start in zip(self._names, self._start, strict=True)
            )
        )


# Makes the client's part of an algorithm. Its arguments: the algorithm's settings, the received model, and a function
# that evaluates the received model on the client's own data and returns the app's metrics.
MakeClient = Callable[[Settings, Received, Callable[[], Mapping[str, object]]], ClientStep]


def _wide(array: Values) -> type[np.floating[Any]]:
    return np.float64 if array.dtype == np.float64 else np.float32
