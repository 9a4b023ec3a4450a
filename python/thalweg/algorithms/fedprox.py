"""FedProx: a client's training is held near the model that it received."""

from __future__ import annotations

from typing import Final

from thalweg.algorithms.settings import Settings

NAME: Final = "fedprox"
MEANING: Final = (
    "as fedavg, but each client adds `algorithm.mu` times its distance from the received model to its gradients, so "
    "that clients with different data drift apart less"
)
SOURCE: Final = "Li et al. 2020 (FedProx), equation 2 and algorithm 2"
SETTINGS: Final[Settings] = {"mu": 0.01}
OWN_APPS: Final = "an app of one's own takes its own steps: add mu times the distance to its gradients in train()"
