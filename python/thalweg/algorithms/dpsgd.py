"""D-PSGD: each node of a graph trains, and averages its model with those of its neighbours."""

from __future__ import annotations

from typing import Final

from thalweg.algorithms.algorithm import NEEDS_GRAPH, Algorithm

ALGORITHM: Final = Algorithm(
    name="dpsgd",
    meaning=(
        "without a server: in each iteration every node of a graph trains its model on its own data, sends it to its "
        "neighbours, and takes the weighted mean of its own and theirs"
    ),
    source="Lian et al. 2017, algorithm 1; udp-dpsgd, algorithms 1 to 3",
    refused=NEEDS_GRAPH,
)
