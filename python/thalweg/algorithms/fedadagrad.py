"""FedAdagrad: the server's optimizer is Adagrad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from thalweg.algorithms.algorithm import NEEDS_SERVER, Algorithm
from thalweg.algorithms.server_step import Rule, Values
from thalweg.algorithms.settings import Settings, required
from thalweg.algorithms.torch_rule import TorchRule

if TYPE_CHECKING:
    import torch

SETTINGS: Final[Settings] = {"server_learning_rate": 0.1, "tau": 1e-3}


def rule(values: Sequence[Values], settings: Settings) -> Rule:
    """Return the server's rule. Raises PackageError if PyTorch is not installed."""
    rate, tau = required(settings, "server_learning_rate"), required(settings, "tau")

    def make(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        return torch.optim.Adagrad(parameters, lr=rate, eps=tau, initial_accumulator_value=tau * tau)

    return TorchRule(values, make)


ALGORITHM: Final = Algorithm(
    name="fedadagrad",
    meaning="as fedavg, but the server's step towards the mean is Adagrad's (torch.optim.Adagrad)",
    source="Reddi et al. 2021, algorithm 2 with beta1 = 0; v begins as tau squared",
    refused=NEEDS_SERVER,
    settings=SETTINGS,
    rule=rule,
)
