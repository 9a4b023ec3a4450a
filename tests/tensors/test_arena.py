"""The arena in Python: views, element types, tied weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from thalweg import _core
from thalweg.errors import ModelError
from thalweg.tensors.arena import Arena, layout_of
from thalweg.tensors.binding import attach


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2, bias=False))


def test_binding_keeps_values_and_makes_views() -> None:
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    arena = Arena.bind(model)
    assert list(arena) == list(before)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
        np.testing.assert_array_equal(arena[name], before[name].numpy())
        assert tensor.data_ptr() - arena.core.address == {n: o for n, _, _, o in arena.layout.tensors}[name]


def test_training_changes_the_arena_and_the_arena_the_model() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    arena = Arena.bind(model)
    before = arena["0.weight"].copy()
    # The samples point in several directions. Otherwise the normalisation would cancel the effect of a weight, except
    # for rounding.
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    assert not np.array_equal(arena["0.weight"], before)
    assert arena["1.num_batches_tracked"] == 1, "buffers travel too"
    arena["2.weight"][...] = 7.0
    assert torch.equal(model.state_dict()["2.weight"], torch.full((2, 5), 7.0))


def test_tied_weights_travel_once() -> None:
    model = network()
    tied = nn.ModuleDict({"first": model, "again": model})
    arena = Arena.bind(tied)
    assert all(name.startswith("first.") for name in arena)
    arena["first.0.weight"][...] = 2.0
    assert torch.equal(tied["again"].state_dict()["0.weight"], torch.full((5, 3), 2.0))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.int8, torch.bool]
)
def test_every_element_type_survives(dtype: torch.dtype) -> None:
    model = nn.Module()
    values = torch.tensor([0, 1, 1, 0]).to(dtype)
    model.register_buffer("values", values.clone())
    model.register_buffer("scalar", torch.tensor(1).to(dtype))
    Arena.bind(model)
    held = model.get_buffer("values")
    assert held.dtype == dtype
    assert torch.equal(held.float(), values.float())
    assert model.get_buffer("scalar").shape == ()


def test_arrays_are_bound_too() -> None:
    arena = Arena.bind({"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(4, np.int64)})
    assert arena["w"].shape == (2, 3)
    assert arena["n"] == 4
    arena["w"][0, 0] = 9
    assert np.asarray(arena.core).view(np.float32)[0] == 9


def test_what_cannot_travel_is_named() -> None:
    with pytest.raises(ModelError, match=r"'z'.*complex64"):
        Arena.bind({"z": np.zeros(2, np.complex64)})
    with pytest.raises(ModelError, match="is on meta"):
        Arena.bind(nn.Linear(2, 2, device="meta"))


def test_attaching_takes_the_arenas_values() -> None:
    arena = _core.Arena(layout_of(network()))
    model = network()
    attach(model, arena)
    assert all(torch.count_nonzero(tensor) == 0 for tensor in model.state_dict().values())


def test_attaching_another_model_says_what_differs() -> None:
    arena = _core.Arena(layout_of(nn.Linear(3, 4)))
    with pytest.raises(ModelError, match=r"weight is float32 \[5, 3\] in this model and float32 \[4, 3\] in the job's"):
        attach(nn.Linear(3, 5), arena)


def test_views_keep_the_arena_alive() -> None:
    view = np.asarray(_core.Arena(_core.Layout([("x", "F32", [1 << 20])])))
    view[:] = 3
    assert view.sum(dtype=np.int64) == 3 * (4 << 20)


@pytest.mark.parametrize(("format_", "bound"), [("f16", 2.0**-11), ("int8", 1 / 127)])
def test_values_become_those_that_receivers_of_compressed_updates_get(format_: str, bound: float) -> None:
    generator = np.random.default_rng(3)
    values = generator.normal(size=1000).astype(np.float32)
    arena = Arena.bind({"steps": np.arange(9), "weights": values})
    arena.core.compress(format_)
    once = arena["weights"].copy()
    assert 0 < np.abs(once - values).max() <= bound * np.abs(values).max()
    np.testing.assert_array_equal(arena["steps"], np.arange(9))
    arena.core.compress(format_)
    np.testing.assert_array_equal(arena["weights"], once)
    with pytest.raises(_core.CoreError, match="int4"):
        arena.core.compress("int4")
