"""Models on a real CUDA device, where there is one: the tests of the fake device, as far as they read no queue."""

from __future__ import annotations

import copy
import gc
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.tensors import test_device
from thalweg.tensors import device as copying
from thalweg.tensors.binding import attach, bind
from thalweg.tensors.watching import Watch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")


def network() -> Any:
    return test_device.network().cuda()


def pinned(bound: Any) -> bool:
    return bool(bound.arena.tensor(next(iter(bound.arena))).is_pinned())


def test_a_model_stays_on_its_device_and_is_copied_to_a_pinned_arena() -> None:
    model = network()
    held = list(model.state_dict(keep_vars=True).values())
    bound = bind(model)
    assert test_device.content(bound) == test_device.content(bind(test_device.network()))
    assert all(now is before for now, before in zip(model.state_dict(keep_vars=True).values(), held, strict=True))
    assert (pinned(bound), bound.devices, bound.unpinned()) == (True, ["cuda:0"], None)


def test_every_layout_is_copied_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "CHUNK", 40)
    plain = nn.ParameterDict(
        {
            "rows": nn.Parameter(torch.arange(12.0).reshape(4, 3)),
            "long": nn.Parameter(torch.arange(24.0).reshape(2, 12)),
            "turned": nn.Parameter(torch.arange(12.0).reshape(3, 4).t()),
            "last": nn.Parameter(torch.arange(48.0).reshape(2, 2, 3, 4).to(memory_format=torch.channels_last)),
            "narrow": nn.Parameter(torch.arange(7.0).bfloat16()),
            "scalar": nn.Parameter(torch.tensor(3.0)),
            "nothing": nn.Parameter(torch.zeros(0, 3)),
        }
    )
    expected = test_device.content(bind(copy.deepcopy(plain)))
    bound = bind(plain.cuda())
    assert test_device.content(bound) == expected
    strides = [tensor.stride() for tensor in bound.model.values()]
    np.asarray(bound.arena.core)[:] ^= 1
    bound.restore("the round")
    assert [tensor.stride() for tensor in bound.model.values()] == strides
    bound.collect("train()")
    assert test_device.content(bound) == bytes(byte ^ 1 for byte in expected)


def test_copies_take_no_memory_of_the_device() -> None:
    bound = bind(network())
    bound.collect("train()")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        bound.restore("the round")
        bound.collect("train()")
    assert torch.cuda.max_memory_allocated() == before


def test_training_sees_the_arenas_values_and_its_own_are_collected() -> None:
    bound = bind(network())
    watch = Watch(bound, pytest.fail)
    bound.arena["2.weight"][...] = 2.0

    def work(model: Any) -> None:
        with torch.no_grad():
            model[2].weight.mul_(3.0)

    watch.train(work)
    assert (bound.arena["2.weight"] == 6.0).all()


def test_an_arena_is_unpinned_when_nobody_copies_any_more() -> None:
    bound = bind(network())
    view = bound.arena.tensor("0.weight")
    assert view.is_pinned()
    del bound
    gc.collect()
    assert not view.is_pinned()


def test_attaching_takes_the_arenas_values() -> None:
    first = bind(network())
    first.arena["0.weight"][...] = 7.0
    second = attach(network(), first.arena.core)
    assert torch.equal(second.model[0].weight.cpu(), torch.full((3, 3), 7.0))


def test_tensors_that_left_the_device_are_brought_back() -> None:
    bound = bind(network())
    bound.collect("train()")
    bound.model.cpu()
    with torch.no_grad():
        bound.model[2].bias.fill_(4.0)
    assert "2.bias" in bound.collect("train()")
    assert (bound.arena["2.bias"] == 4.0).all()
    assert {str(tensor.device) for tensor in bound.model.state_dict().values()} == {"cuda:0"}


@pytest.mark.parametrize("server", [False, True], ids=["server on the CPU", "server on the device"])
def test_rounds_give_the_bits_of_a_job_on_the_cpu(server: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_device, "moved", lambda model: model.cuda())
    expected = test_device.values_after(server=False, clients=False)
    assert test_device.values_after(server=server, clients=True) == expected
