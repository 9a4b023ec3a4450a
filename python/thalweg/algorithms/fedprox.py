"""FedProx: an extra term in the gradients keeps a client's model near the one that it received."""

from __future__ import annotations

from typing import Final

from thalweg.algorithms.algorithm import NEEDS_SERVER, Algorithm
from thalweg.algorithms.settings import Settings

SETTINGS: Final[Settings] = {"mu": 0.01}


ALGORITHM: Final = Algorithm(
    name="fedprox",
    meaning=(
        "as fedavg, but each client adds `algorithm.mu` times its distance from the received model to its gradients, "
        "so that clients with different data drift apart less"
    ),
    source="Li et al. 2020 (FedProx), equation 2 and algorithm 2",
    refused=NEEDS_SERVER,
    settings=SETTINGS,
    own_apps="an app of one's own takes its own steps: add mu times the distance to its gradients in train()",
)
