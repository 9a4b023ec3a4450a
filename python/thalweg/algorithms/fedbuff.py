"""FedBuff: the server takes a step when its buffer is full, even if the updates began with different versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from thalweg import _core
from thalweg.algorithms.algorithm import STRATEGY, FunctionAlgorithm
from thalweg.algorithms.server_step import Values
from thalweg.tensors.arena import Arena


def staleness_weight(staleness: int, exponent: float) -> float:
    """Return the weight of an update that began ``staleness`` versions ago: 1 / (1 + staleness) ** exponent."""
    return float((1.0 + staleness) ** -exponent)


@dataclass
class Buffer:
    """The weighted sum of the updates since the last step, in float64."""

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
        """Add the sum, divided by the number of updates, to the model in ``arena``, and empty the buffer."""
        tensors = Arena(arena)
        for name, values in self._sums.items():
            tensor = tensors[name]
            tensor[...] = (tensor.astype(np.float64) + values / self.count).astype(tensor.dtype)
        self.count, self._sums = 0, {}


_NODES: Final = "nodes of a tree fold updates of one round, and FedBuff's are of different versions of the model"
FUNCTION: Final = FunctionAlgorithm(
    name="fedbuff",
    meaning="asynchronous rounds: the server takes a step whenever enough updates are there, and no client waits",
    source="Nguyen et al. 2022 (FedBuff), algorithm 1; the weight of section 5 is that of exponent 0.5",
    refused={
        "tree": _NODES,
        "nodes": _NODES,
        "graph": "neighbours fold models of one iteration, and FedBuff's are of different versions of the model",
        "flower": STRATEGY,
    },
)
