"""FedAdam: the server's optimizer is Adam, without Adam's bias correction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from thalweg.algorithms.algorithm import NEEDS_SERVER, Algorithm
from thalweg.algorithms.server_step import Rule, Values
from thalweg.algorithms.settings import Settings, required
from thalweg.algorithms.torch_rule import TorchRule

if TYPE_CHECKING:
    import torch

SETTINGS: Final[Settings] = {"server_learning_rate": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}
# Number of the first step. Adam's bias correction divides by 1 - beta^step, which is 1 in floating point from here on.
FIRST_STEP: Final = 2.0**40


def rule(values: Sequence[Values], settings: Settings) -> Rule:
    """Return the server's rule. Raises PackageError if PyTorch is not installed."""
    tau = required(settings, "tau")

    def make(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        betas = required(settings, "beta1"), required(settings, "beta2")
        optimizer = torch.optim.Adam(parameters, lr=required(settings, "server_learning_rate"), betas=betas, eps=tau)
        for parameter in parameters:
            optimizer.state[parameter] = {
                "step": torch.tensor(FIRST_STEP),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.full_like(parameter, tau * tau),
            }
        return optimizer

    return TorchRule(values, make)


ALGORITHM: Final = Algorithm(
    name="fedadam",
    meaning="as fedavg, but the server's step towards the mean is Adam's (torch.optim.Adam)",
    source="Reddi et al. 2021, algorithm 2; v begins as tau squared, and there is no bias correction",
    refused=NEEDS_SERVER,
    settings=SETTINGS,
    rule=rule,
)
