"""D-PSGD: each node of a graph trains, and averages its model with those of its neighbours."""

from __future__ import annotations

from typing import Final

# An iteration is driven like a round. A node that is far behind skips to later numbers.
from thalweg.algorithms.fedavg import rounds

__all__ = ["MEANING", "SOURCE", "rounds"]

MEANING: Final = (
    "without a server: in each iteration every node of a graph trains its model on its own data, sends it to its "
    "neighbours, and takes the weighted mean of its own and theirs"
)
SOURCE: Final = "Lian et al. 2017, algorithm 1; udp-dpsgd, algorithms 1 to 3"
