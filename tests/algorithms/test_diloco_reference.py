"""DiLoCo without a network, as the bench of its loss runs it, beside the papers' algorithms in plain PyTorch."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import pytest
import torch
from benches.diloco import learning
from benches.diloco.model import rate
from torch import nn

PEERS, STEPS, EVERY, WIDTH, INNER = 4, 32, 8, 6, 2e-2


def small_model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Linear(WIDTH, 4)


class Batches:
    """A peer's batches, in place of windows of a text."""

    def __init__(self, _: object, peer: int, size: int) -> None:
        self._size, self._random = size, torch.Generator().manual_seed(peer)

    def __next__(self) -> torch.Tensor:
        return torch.randn(self._size, WIDTH, generator=self._random)


def loss_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (model(inputs) - inputs.cumsum(dim=1)[:, :4]).square().mean()
    return loss


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()])


class Reference:
    """Algorithm 2 of Streaming DiLoCo; with one fragment and no overlap it is algorithm 1 of DiLoCo."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen = chosen
        self.models = [small_model() for _ in range(PEERS)]
        self.inners = [torch.optim.AdamW(one.parameters(), lr=INNER, betas=(0.9, 0.99)) for one in self.models]
        self.batches = [Batches(None, peer, learning.BATCH) for peer in range(PEERS)]
        parts = flat(self.models[0]).tensor_split(chosen.fragments)
        self.bounds = [0, *torch.tensor([part.numel() for part in parts]).cumsum(0).tolist()]
        # The values that all peers share: each fragment is a parameter of an outer optimizer of its own.
        self.shared = [nn.Parameter(part.clone()) for part in parts]
        self.outers = [
            torch.optim.SGD([one], lr=chosen.rate, momentum=chosen.momentum, nesterov=chosen.momentum > 0)
            for one in self.shared
        ]
        self.under_way: list[tuple[int, int, torch.Tensor]] = []

    def step(self, number: int) -> None:
        chosen = self.chosen
        for model, inner, batches in zip(self.models, self.inners, self.batches, strict=True):
            inner.param_groups[0]["lr"] = rate(number - 1, chosen.steps, chosen.inner)
            inner.zero_grad()
            torch.autograd.backward(loss_of(model, next(batches)))
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            inner.step()
        between = chosen.every // chosen.fragments
        if number % between == 0:
            fragment = (number // between - 1) % chosen.fragments
            sent = [flat(model)[self.place(fragment)] for model in self.models]
            self.under_way.append((number + chosen.overlap, fragment, torch.stack(sent).mean(dim=0)))
        for due, fragment, mean in self.under_way:
            if due == number:
                self.outer_step(fragment, mean)
        self.under_way = [one for one in self.under_way if one[0] > number]

    def place(self, fragment: int) -> slice:
        return slice(self.bounds[fragment], self.bounds[fragment + 1])

    def outer_step(self, fragment: int, mean: torch.Tensor) -> None:
        shared, place = self.shared[fragment], self.place(fragment)
        shared.grad = shared.detach() - mean
        self.outers[fragment].step()
        keep = self.chosen.keep if self.chosen.overlap else 0.0
        for model in self.models:
            values = flat(model)
            values[place] = keep * values[place] + (1 - keep) * shared.detach()
            with torch.no_grad():
                nn.utils.vector_to_parameters(values, model.parameters())


@pytest.mark.parametrize(("fragments", "overlap", "momentum"), [(1, 0, 0.9), (1, 3, 0.9), (2, 3, 0.9), (2, 0, 0.0)])
def test_the_bench_takes_the_steps_of_the_papers(
    monkeypatch: pytest.MonkeyPatch, fragments: int, overlap: int, momentum: float
) -> None:
    replaced: dict[str, Callable[..., Any]] = {"small_gpt": small_model, "Batches": Batches, "loss_of": loss_of}
    for name, value in replaced.items():
        monkeypatch.setattr(learning, name, value)
    chosen = argparse.Namespace(
        way="diloco", steps=STEPS, every=EVERY, fragments=fragments, overlap=overlap, rate=0.7, momentum=momentum
    )
    chosen.inner, chosen.keep, chosen.compress = INNER, 0.25, None
    training: Any = learning.Training(chosen, None)  # type: ignore[arg-type]
    reference = Reference(chosen)
    for number in range(1, STEPS + 1):
        training.step(number)
        reference.step(number)
    for peer, model in zip(training.peers, reference.models, strict=True):
        torch.testing.assert_close(flat(peer.model), flat(model), rtol=1e-5, atol=1e-6)


def test_data_parallel_training_sees_the_batches_of_all_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its step is that of the mean of the peers' gradients."""
    replaced: dict[str, Callable[..., Any]] = {"small_gpt": small_model, "Batches": Batches, "loss_of": loss_of}
    for name, value in replaced.items():
        monkeypatch.setattr(learning, name, value)
    chosen = argparse.Namespace(way="data-parallel", steps=STEPS, inner=INNER, rate=0.7, momentum=0.9)
    training: Any = learning.Training(chosen, None)  # type: ignore[arg-type]
    model = small_model()
    inner = torch.optim.AdamW(model.parameters(), lr=INNER, betas=(0.9, 0.99))
    batches = [Batches(None, peer, learning.BATCH) for peer in range(PEERS)]
    for number in range(1, STEPS + 1):
        training.step(number)
        inner.param_groups[0]["lr"] = rate(number - 1, STEPS, INNER)
        inner.zero_grad()
        for one in batches:
            torch.autograd.backward(loss_of(model, next(one)) / PEERS)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        inner.step()
    torch.testing.assert_close(flat(training.peers[0].model), flat(model), rtol=1e-5, atol=1e-6)
