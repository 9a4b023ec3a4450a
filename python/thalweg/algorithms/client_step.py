"""What an algorithm adds to a client's training in a round: before it, and to the update and its weight after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from thalweg.algorithms.server_step import Values
from thalweg.tensors.arena import Arena


class ClientStep(Protocol):
    """One round of a client."""

    def before(self) -> None:
        """Look at the received model, before the training."""

    def after(self, samples: float, metrics: Mapping[str, object]) -> tuple[float, Mapping[str, object]]:
        """Change the update in the arena; return its weight and the metrics."""


class Received:
    """The trained tensors of a model as they were received, beside the arena in which they are trained."""

    def __init__(self, arena: Arena, names: list[str]) -> None:
        self._arena, self._names = arena, names
        self._start: list[Values] = []

    def copy(self) -> None:
        """Copy the received tensors."""
        self._start = [self._arena[name].copy() for name in self._names]

    def scale(self, factor: float) -> None:
        """Multiply by ``factor`` what the training has changed."""
        for name, start in zip(self._names, self._start, strict=True):
            trained = self._arena[name]
            trained[...] = start + factor * (trained.astype(_wide(start)) - start)

    def square(self) -> float:
        """Return the sum of the squares of what the training has changed."""
        return float(
            sum(
                np.square(self._arena[name].astype(np.float64) - start.astype(np.float64)).sum()
                for name, start in zip(self._names, self._start, strict=True)
            )
        )


# Makes the client's part of an algorithm: from its settings, the received model, and a function that returns the app's
# metrics of the received model on the client's own data.
MakeClient = Callable[[Mapping[str, Any], Received, Callable[[], Mapping[str, object]]], ClientStep]


def _wide(array: Values) -> type[np.floating[Any]]:
    return np.float64 if array.dtype == np.float64 else np.float32
