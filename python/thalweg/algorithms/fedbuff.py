"""FedBuff: the server takes a step when it has a number of updates, whichever versions of the model they began with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from thalweg import _core
from thalweg.algorithms.algorithm import STRATEGY, Called
from thalweg.algorithms.server_step import Values
from thalweg.tensors.arena import Arena


def staleness_weight(staleness: int, exponent: float) -> float:
    """Return the weight of an update that began ``staleness`` versions ago: 1 / (1 + staleness) ** exponent."""
    return float((1.0 + staleness) ** -exponent)


@dataclass
class Buffer:
    """The weighted sum of the updates since the last step. It holds one float64 value for each of the model's."""

    names: Iterable[str]
    exponent: float
    count: int = 0
    _sums: dict[str, Values] = field(default_factory=dict)

    def add(self, update: Mapping[str, Values], staleness: int) -> float:
        """Add an update, the model after training minus the model before it; return its weight."""
        weight = staleness_weight(staleness, self.exponent)
        for name in self.names:
            values = np.asarray(update[name]).astype(np.float64)
            if name in self._sums:
                self._sums[name] += weight * values
            else:
                self._sums[name] = weight * values
        self.count += 1
        return weight

    def take(self, arena: _core.Arena) -> None:
        """Add the sum, divided by the number of updates, to the model in ``arena``; begin anew."""
        tensors = Arena(arena)
        for name, values in self._sums.items():
            tensor = tensors[name]
            tensor[...] = (tensor.astype(np.float64) + values / self.count).astype(tensor.dtype)
        self.count, self._sums = 0, {}


_NODES: Final = "a tree's nodes fold updates of one round, and its updates are of different versions of the model"
CALLED: Final = Called(
    name="fedbuff",
    meaning="asynchronous rounds: the server takes a step whenever it has a number of updates, and nobody waits",
    source="Nguyen et al. 2022 (FedBuff), algorithm 1; the weight of section 5 is that of exponent 0.5",
    refused={
        "tree": _NODES,
        "nodes": _NODES,
        "graph": "neighbours fold models of one iteration, and its updates are of different versions of the model",
        "flower": STRATEGY,
    },
)
