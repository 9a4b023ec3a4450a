"""FedProx: a client's gradient is that of its loss and of mu/2 times the squared distance from the received model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from flwr.common import ndarrays_to_parameters
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedProx
from torch import nn

from thalweg.algorithms.local_sgd import MomentumSGD
from thalweg.job.common.parties import known_app, round_config
from thalweg.plan import Plan

if TYPE_CHECKING:
    from flwr.server.client_manager import ClientManager


def trained(mu: float, *, by_loss: bool, steps: int = 5) -> list[torch.Tensor]:
    """Train a layer for a few steps; ``by_loss`` adds the term to the loss, as papers and Flower's examples do."""
    torch.manual_seed(1)
    model, inputs = nn.Linear(4, 3, dtype=torch.float64), torch.randn(20, 4, dtype=torch.float64)
    starts = [parameter.detach().clone() for parameter in model.parameters()]
    optimiser = MomentumSGD(model.parameters(), 0.1, 0.9, 0.0 if by_loss else mu)
    for _ in range(steps):
        optimiser.drop_gradients()
        loss = model(inputs).square().mean()
        if by_loss:
            loss = loss + mu / 2 * sum((p - s).square().sum() for p, s in zip(model.parameters(), starts, strict=True))
        torch.autograd.backward(loss)
        optimiser.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("mu", [0.01, 0.5, 4.0])
def test_the_gradient_is_that_of_the_papers_loss(mu: float) -> None:
    plain = trained(0.0, by_loss=False)
    for one, other, without in zip(trained(mu, by_loss=False), trained(mu, by_loss=True), plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
        assert not torch.allclose(one, without)


def test_clients_get_mu_as_flowers_strategy_gives_it() -> None:
    plan = Plan.of(
        {"algorithm": {"name": "fedprox", "mu": 0.3}, "model": {"name": "lenet"}, "data": {"name": "digits"}}
    )
    told = round_config(plan, 1, ["a"]).table()["algorithm"]
    assert told == {"name": "fedprox", "mu": 0.3}
    strategy = FedProx(proximal_mu=0.3, min_fit_clients=1, min_available_clients=1)
    ((_, instructions),) = strategy.configure_fit(1, ndarrays_to_parameters([]), cast("ClientManager", Manager()))
    assert instructions.config["proximal_mu"] == told["mu"]
    assert round_config(Plan.of({}), 1, ["a"]).algorithm is None


class Manager:
    """A client manager of Flower with one client."""

    def num_available(self) -> int:
        return 1

    def sample(self, **_: Any) -> list[ClientProxy]:
        return [None]  # type: ignore[list-item]


def test_a_known_model_stays_nearer_to_the_received_one() -> None:
    def distance(algorithm: dict[str, Any]) -> float:
        table = {
            "algorithm": algorithm,
            "job": {"clients": 1},
            "model": {"name": "lenet"},
            "data": {"name": "digits", "samples": 400},
        }
        app = known_app(Plan.of(table), 0)
        model = app.model()
        starts = [parameter.detach().clone() for parameter in model.parameters()]
        app.train(model, app.train_data(), {"round": 1})
        return sum(float((p.detach() - s).square().sum()) for p, s in zip(model.parameters(), starts, strict=True))

    assert distance({"name": "fedprox", "mu": 20.0}) < 0.9 * distance({"name": "fedavg"})
