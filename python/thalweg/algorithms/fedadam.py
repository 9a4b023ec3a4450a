"""FedAdam: the server's optimizer is Adam, without its correction of the first steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from thalweg.algorithms.algorithm import SERVED, Algorithm
from thalweg.algorithms.server_step import Rule, Values
from thalweg.algorithms.settings import Settings, of
from thalweg.algorithms.torch_rule import TorchRule

if TYPE_CHECKING:
    import torch

SETTINGS: Final[Settings] = {"server_learning_rate": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}
# Adam divides by 1 - beta^step, which is 1 to float precision if the first step has this number.
LATE: Final = 2.0**40


def rule(values: Sequence[Values], settings: Settings) -> Rule:
    """Return the server's rule. Raises PackageError if PyTorch is not installed."""
    tau = of(settings, "tau")

    def make(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        import torch

        betas = of(settings, "beta1"), of(settings, "beta2")
        optimizer = torch.optim.Adam(parameters, lr=of(settings, "server_learning_rate"), betas=betas, eps=tau)
        for parameter in parameters:
            optimizer.state[parameter] = {
                "step": torch.tensor(LATE),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.full_like(parameter, tau * tau),
            }
        return optimizer

    return TorchRule(values, make)


ALGORITHM: Final = Algorithm(
    name="fedadam",
    meaning="as fedavg, but the server's step towards the mean is Adam's (torch.optim.Adam)",
    source="Reddi et al. 2021, algorithm 2; v begins as tau squared, and no step is corrected for its number",
    refused=SERVED,
    settings=SETTINGS,
    rule=rule,
)
