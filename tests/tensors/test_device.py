"""A model on an accelerator: it stays there, and its values are copied from and to a pinned arena."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import thalweg
from tests.tensors.pretend import CUDA, Device, Pretend, device, moved
from thalweg import _core
from thalweg.errors import ModelError
from thalweg.tensors import device as copying
from thalweg.tensors.arena import Arena, layout_of
from thalweg.tensors.binding import Binding, attach, bind
from thalweg.tensors.named import Tensors
from thalweg.tensors.watching import Watch

__all__ = ["device"]  # a fixture


def network() -> Any:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


class Tied(nn.Module):
    """A model whose first and last layer share their weight, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def content(bound: Binding) -> bytes:
    return np.asarray(bound.arena.core).tobytes()


def step(model: Any, samples: torch.Tensor) -> None:
    """Change every parameter in place, without gradients: for gradients PyTorch would need a real device's streams."""
    with torch.no_grad():
        loss = model[2](model[0](samples)).square().mean()
        for parameter in model.parameters():
            parameter.mul_(0.9).sub_(loss)


def test_a_model_stays_on_its_device_and_is_copied_to_a_pinned_arena(device: Device) -> None:
    model = moved(network())
    held = list(model.state_dict(keep_vars=True).values())
    bound = bind(model)
    assert content(bound) == content(bind(network()))
    assert all(now is before for now, before in zip(model.state_dict(keep_vars=True).values(), held, strict=True))
    assert device.pinned == {bound.arena.core.address: len(bound.arena.core)}
    assert device.copies == {"to device": [], "to host": [tensor.nbytes for tensor in held]}
    assert bound.devices == ["cuda:0"]
    assert bound.summary().endswith(", on cuda:0")


def test_training_gives_the_bits_of_a_model_on_the_cpu_and_no_second_model(device: Device) -> None:
    samples = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))
    here, there = bind(network()), bind(moved(network()))
    watches = [Watch(bound, pytest.fail) for bound in (here, there)]
    inputs = samples, Pretend.of(samples.clone())
    for number in range(3):
        for bound, watch, values in zip((here, there), watches, inputs, strict=True):
            watch.train(partial(step, samples=values))
            # Other values in the arena, as a mean would be. Training must begin with them.
            bound.arena["0.weight"][...] *= number + 2
    assert content(here) == content(there)
    size = sum(tensor.nbytes for tensor in here.model.state_dict().values())
    assert there.copies is not None
    assert (there.copies.to_device.bytes, there.copies.to_arena.bytes) == (3 * size, 4 * size)
    device.allocated.clear()
    there.restore("the round")
    there.collect("train()")
    assert device.allocated == []
    assert device.pins == 1


def test_copies_are_cut_into_chunks(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "CHUNK", 40)
    plain = nn.ParameterDict(
        {
            "rows": nn.Parameter(torch.arange(12.0).reshape(4, 3)),
            "long": nn.Parameter(torch.arange(24.0).reshape(2, 12)),
            "turned": nn.Parameter(torch.arange(12.0).reshape(3, 4).t()),
            "scalar": nn.Parameter(torch.tensor(3.0)),
            "nothing": nn.Parameter(torch.zeros(0, 3)),
        }
    )
    expected = content(bind(copy.deepcopy(plain)))
    bound = bind(moved(plain))
    assert content(bound) == expected
    chunks = [4], [12, 36], [48, 48], [36, 12]
    assert sorted(device.copies["to host"]) == sorted(size for part in chunks for size in part)
    assert bound.copies is not None
    assert bound.copies.to_arena.chunks == 7
    np.asarray(bound.arena.core).view(np.float32)[:] += 1
    bound.restore("the round")
    assert {name: tensor.memory.sum().item() for name, tensor in bound.model.items()} == {
        "rows": 78,
        "long": 300,
        "turned": 78,
        "scalar": 4,
        "nothing": 0,
    }
    assert sorted(device.copies["to device"]) == sorted(device.copies["to host"])


def test_training_begins_beside_the_copies_and_evaluation_waits_for_them(device: Device) -> None:
    bound = bind(moved(network()))
    watch = Watch(bound, pytest.fail)
    queued: list[int] = []

    def work(model: Any) -> None:
        queued.append(len(device.queue))
        with torch.no_grad():
            model[0].weight.add_(1)

    watch.train(work)
    assert queued == [9], "the copies had not ended when training began"
    assert device.queue == [], "and had when it was over"
    trained = content(bound)
    watch.evaluate(work)
    assert device.queue == []
    assert content(bound) == trained, "what evaluation does to the model is not sent"
    assert bound.model[0].weight.memory.numpy().tobytes() == bound.arena["0.weight"].tobytes()


def test_an_arena_is_unpinned_when_nobody_copies_any_more(device: Device) -> None:
    bound = bind(moved(network()))
    view = bound.arena["0.weight"]
    bound.restore("the round", wait=False)
    del bound
    gc.collect()
    assert device.pinned == {}
    assert device.queue == []
    assert view.any(), "the memory itself is there as long as a view is"


def test_an_arena_that_cannot_be_pinned_is_said_once_and_works(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    device.refuses = True
    started: list[Any] = []
    model = moved(network())

    def ones(_size: int, *, device: str) -> torch.Tensor:
        started.append(device)
        return torch.zeros(1)

    with monkeypatch.context() as patched:
        patched.setattr(torch, "ones", ones)
        bound = bind(model)
    notes: list[str] = []
    for _ in range(2):
        Watch(bound, notes.append)
    assert notes == ["the arena is not pinned, so copies from and to cuda:0 are slower: no more memory may be pinned"]
    assert started == ["cuda"], "the kernel that takes CUDA's report of the failure"
    assert content(bound) == content(bind(network()))
    del bound
    gc.collect()


def test_attaching_takes_the_arenas_values(device: Device) -> None:
    core = _core.Arena(layout_of(network()))
    bound = attach(moved(network()), core)
    assert not any(tensor.memory.any() for tensor in bound.model.state_dict().values())
    assert device.copies["to host"] == []


def test_tied_tensors_are_copied_once_and_stay_tied(device: Device) -> None:
    model: Any = Tied()
    weight = nn.Parameter(Pretend.of(model.embed.weight.detach().clone()))
    model.embed.weight = model.head.weight = weight
    bound = bind(model)
    assert len(device.copies["to host"]) == 1
    bound.arena["embed.weight"][...] = 4
    bound.restore("the round")
    assert model.head.weight is model.embed.weight is weight
    assert weight.memory.eq(4).all()


def test_a_tensor_that_left_its_device_is_brought_back(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = bind(moved(network()))
    asked: list[object] = []

    def empty_like(view: torch.Tensor, *, device: torch.device) -> torch.Tensor:
        asked.append(device)
        return Pretend.of(torch.zeros(view.shape, dtype=view.dtype))

    monkeypatch.setattr(torch, "empty_like", empty_like)
    with torch.inference_mode():  # outside of this mode PyTorch gives a tensor memory only of a real device
        weight, bias = nn.Parameter(torch.full((3, 3), 5.0)), nn.Parameter(torch.full((2,), 6.0))
    bound.model[0].weight = weight
    notes: list[str] = []
    assert Watch(bound, notes.append).train(lambda _model: None) is None
    assert bound.arena["0.weight"].any()
    bound.model[2].bias = bias
    assert bound.collect("train()") == ["2.bias"]
    assert bound.arena["2.bias"].tolist() == [6, 6]
    assert asked == [CUDA, CUDA]
    assert isinstance(bound.model[2].bias, Pretend)
    assert bound.model[2].bias.memory.tolist() == [6, 6]


def test_only_tensors_that_travel_are_copied(device: Device) -> None:
    bound = bind(moved(network()), "2.*")
    assert device.copies["to host"] == [24, 8]
    assert bound.devices == ["cuda:0"]
    home = network()
    moved(home[2])
    assert bind(home, "0.*").copies is None


def test_views_of_an_arena_need_a_model_on_the_cpu(device: Device) -> None:
    with pytest.raises(ModelError, match="the model is on cuda:0") as caught:
        Arena.bind(moved(network()))
    assert "model.cpu()" in caught.value.hint


def test_tensors_of_a_task_are_copied_from_their_device(device: Device) -> None:
    tensors = Tensors({"w": Pretend.of(torch.arange(4.0)), "n": np.ones(2)})
    assert tensors["w"].tolist() == [0, 1, 2, 3]
    assert device.copies["to host"] == [16]


class App:
    """An app whose training adds the client's number and a small value, on the device if it has one."""

    def __init__(self, *, on_device: bool) -> None:
        self.on_device = on_device

    def model(self) -> nn.Module:
        return moved(network()) if self.on_device else network()

    def train(self, model: Any, data: int, _config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1).add_(data / 3)
        return data, {}


@pytest.mark.parametrize("server", [False, True], ids=["server on the CPU", "server on the device"])
def test_rounds_give_the_bits_of_a_job_on_the_cpu(device: Device, server: bool) -> None:
    assert values_after(server=server, clients=True) == values_after(server=False, clients=False)
    assert device.pins == 2 + server


def values_after(*, server: bool, clients: bool) -> list[Any]:
    """Return the values of the server's model after each of three rounds with two clients."""
    with thalweg.Server(App(on_device=server), clients=2, deterministic=True) as here:
        joined = [
            thalweg.Client(App(on_device=clients), here.address, name=f"client-{data}", data=data) for data in (1, 2)
        ]
        threads = [threading.Thread(target=client.run) for client in joined]
        for thread in threads:
            thread.start()
        values = [
            [plain.tolist() for plain in map(values_of, here.model.state_dict().values())]
            for done in thalweg.fedavg(here, 3)
            if done.complete
        ]
        assert len(values) == 3
    for thread in threads:
        thread.join()
    return values


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.memory if isinstance(tensor, Pretend) else tensor
