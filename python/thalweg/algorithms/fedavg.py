"""Federated averaging: the next global model is the mean of the models that clients have trained."""

from __future__ import annotations

from typing import Final

from thalweg.algorithms.algorithm import NEEDS_SERVER, Algorithm

ALGORITHM: Final = Algorithm(
    name="fedavg",
    meaning=(
        "in each round clients train the global model on their own data; the mean of what they send, weighted by "
        "samples, is the next one"
    ),
    source="McMahan et al. 2017, algorithm 1",
    refused=NEEDS_SERVER,
)
