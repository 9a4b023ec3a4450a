"""DiLoCo in a plain PyTorch loop: its steps are the paper's, and peers may leave and join."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import thalweg
from thalweg import models
from thalweg.data import load_any
from thalweg.data.text import Text
from thalweg.errors import PlanError

LIMIT = 60.0
WIDTH = 4


def outer(tensors: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(tensors, lr=0.7, momentum=0.9, nesterov=True)


class Job:
    """The server's app: it has a model alone."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        self.model = make


def job(make: Callable[[], nn.Module]) -> Any:
    """Return it as the app of a server, which never trains."""
    return Job(make)


def layer() -> nn.Module:
    torch.manual_seed(5)
    return nn.Linear(WIDTH, 1, dtype=torch.float64)


def batch(peer: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * peer + step)
    inputs = torch.randn(8, WIDTH, dtype=torch.float64, generator=generator)
    return inputs, inputs.sum(dim=1, keepdim=True) + peer


def trained(model: nn.Module, inner: torch.optim.Optimizer, peer: int, step: int) -> None:
    """Take a step of a plain loop."""
    inputs, targets = batch(peer, step)
    inner.zero_grad()
    torch.autograd.backward((model(inputs) - targets).square().mean())
    inner.step()


def take_part(url: str, number: int, every: int, models_out: dict[int, nn.Module]) -> None:
    model = layer()
    inner = torch.optim.AdamW(model.parameters(), lr=0.05)
    with thalweg.diloco(model, inner, url, every=every, name=f"peer-{number}") as peer:
        step = 0
        while not peer.over:
            trained(model, inner, number, step)
            step += 1
    models_out[number] = model


def test_the_steps_are_those_of_the_paper() -> None:
    """Algorithm 1: peers keep the state of AdamW; the server's Nesterov step is on the mean of differences."""
    every, rounds, found = 3, 4, dict[int, nn.Module]()
    with thalweg.Server(job(layer), clients=2) as server:
        threads = [
            threading.Thread(daemon=True, target=take_part, args=(server.address, one, every, found)) for one in (1, 2)
        ]
        for thread in threads:
            thread.start()
        for _ in thalweg.rounds(server, rounds, optimizer=outer):
            pass
        values = {name: array.copy() for name, array in server.arena.items()}
    for thread in threads:
        thread.join(LIMIT)

    glob = layer()
    optimizer = outer(list(glob.parameters()))
    peers = {one: layer() for one in (1, 2)}
    inners = {one: torch.optim.AdamW(model.parameters(), lr=0.05) for one, model in peers.items()}
    for number in range(rounds):
        for one, model in peers.items():
            model.load_state_dict(glob.state_dict())
            for step in range(number * every, (number + 1) * every):
                trained(model, inners[one], one, step)
        with torch.no_grad():
            for parameter, *others in zip(glob.parameters(), *(m.parameters() for m in peers.values()), strict=True):
                parameter.grad = parameter - torch.stack(list(others)).mean(dim=0)
        optimizer.step()
    for name, tensor in glob.state_dict().items():
        np.testing.assert_allclose(values[name], tensor.numpy(), rtol=1e-10)


@pytest.fixture
def open_server() -> Iterator[thalweg.Server]:
    with thalweg.Server(job(layer), clients=2, enough=1) as server:
        yield server


def test_a_peer_leaves_in_its_steps_and_another_joins(open_server: thalweg.Server) -> None:
    found: dict[int, nn.Module] = {}
    staying = threading.Thread(daemon=True, target=take_part, args=(open_server.address, 1, 2, found))
    staying.start()
    left = threading.Event()

    def leave() -> None:
        model = layer()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        with thalweg.diloco(model, inner, open_server.address, every=2, name="peer-2") as peer:
            for step in range(3):  # a round, and one step of the next
                trained(model, inner, 2, step)
        assert [one["status"] for one in peer.rounds] == ["accepted"]
        left.set()

    leaving = threading.Thread(daemon=True, target=leave)
    leaving.start()
    seen = thalweg.rounds(open_server, 1000, optimizer=outer)
    first, second = next(seen), next(seen)
    assert (sorted(first.participants), second.participants) == (["peer-1", "peer-2"], ["peer-1"])
    assert "the peer ends" in second.absent["peer-2"]
    assert left.wait(LIMIT)
    joining = threading.Thread(daemon=True, target=take_part, args=(open_server.address, 3, 2, found))
    joining.start()
    assert any("peer-3" in done.participants for done in seen)
    open_server.close()
    for thread in (staying, leaving, joining):
        thread.join(LIMIT)
    assert set(found) == {1, 3}


def test_bytes_fall_with_the_number_of_steps_between_exchanges() -> None:
    """What was really sent, for the same number of inner steps: meeting at each of them is data-parallel training."""
    sent = {}
    for every in (1, 10):
        found: dict[int, nn.Module] = {}
        with thalweg.Server(job(lambda: nn.Linear(1000, 50)), clients=1) as server:
            thread = threading.Thread(daemon=True, target=wide, args=(server.address, every))
            thread.start()
            rounds = list(thalweg.rounds(server, 20 // every, optimizer=outer))
        thread.join(LIMIT)
        del found
        sent[every] = sum(done.outcome["bytes_up"] + done.outcome["bytes_down"] for done in rounds)
    assert sent[1] == pytest.approx(10 * sent[10], rel=0.02)


def wide(url: str, every: int) -> None:
    model = nn.Linear(1000, 50)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with thalweg.diloco(model, inner, url, every=every, name="one") as peer:
        while not peer.over:
            inner.zero_grad()
            torch.autograd.backward(model(torch.ones(2, 1000)).square().mean())
            inner.step()


def test_every_has_to_be_a_number_of_steps() -> None:
    model = layer()
    with pytest.raises(PlanError, match="every is 0"):
        thalweg.diloco(model, torch.optim.SGD(model.parameters(), lr=1), "tcp://127.0.0.1:9", every=0, name="a")


def test_gpt2_mini_learns_english() -> None:
    pytest.importorskip("transformers", reason="the package transformers, of the extra lm, is not installed")
    text, _ = load_any("english", root=None)
    assert isinstance(text, Text)
    tokens = torch.from_numpy(np.asarray(text.tokens[:64], np.int64))
    losses: dict[int, list[float]] = {}

    def loop(url: str, number: int) -> None:
        model: Any = models.build("gpt2-mini", classes=10, seed=number)
        inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
        seen = losses.setdefault(number, [])
        with thalweg.diloco(model, inner, url, every=4, name=f"peer-{number}") as peer:
            while not peer.over:
                inputs = tokens[torch.randint(len(tokens), (4,), generator=torch.Generator().manual_seed(peer.steps))]
                logits = model(inputs[:, :-1]).logits
                loss = cross_entropy(logits.flatten(0, 1), inputs[:, 1:].flatten())
                inner.zero_grad()
                torch.autograd.backward(loss)
                seen.append(loss.item())
                inner.step()

    with thalweg.Server(job(lambda: models.build("gpt2-mini", classes=10, seed=0)), clients=2) as server:
        threads = [threading.Thread(daemon=True, target=loop, args=(server.address, one)) for one in (1, 2)]
        for thread in threads:
            thread.start()
        for _ in thalweg.rounds(server, 3, optimizer=outer):
            pass
    for thread in threads:
        thread.join(LIMIT)
    for seen in losses.values():
        assert len(seen) == 12
        assert seen[-1] < seen[0] - 0.5
