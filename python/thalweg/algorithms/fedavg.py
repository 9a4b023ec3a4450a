"""Federated averaging: rounds of local training whose mean is the next global model."""

from __future__ import annotations

from typing import Final

from thalweg.algorithms.algorithm import SERVED, Algorithm

ALGORITHM: Final = Algorithm(
    name="fedavg",
    meaning=(
        "in each round clients train the global model on their own data; the mean of what they send, weighted by "
        "samples, is the next one"
    ),
    source="McMahan et al. 2017, algorithm 1",
    refused=SERVED,
)
