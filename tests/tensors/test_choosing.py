"""Which tensors travel, by patterns and by requires_grad."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from thalweg.errors import ModelError
from thalweg.tensors.arena import layout_of
from thalweg.tensors.binding import attach, bind
from thalweg.tensors.choosing import Choice, Named

PEFT = "base_model.model.model.layers.0.self_attn.q_proj"


def network() -> Any:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    return model


def adapted() -> Any:
    """Return a module with peft's names: a frozen layer and its adapters."""
    projection = nn.Module()
    projection.base_layer = nn.Linear(8, 8).requires_grad_(False)
    projection.lora_A = nn.ModuleDict({"default": nn.Linear(8, 2, bias=False)})
    projection.lora_B = nn.ModuleDict({"default": nn.Linear(2, 8, bias=False)})
    model: nn.Module = projection
    for key in reversed(PEFT.split(".")):
        outer = nn.Module()
        outer.add_module(key, model)
        model = outer
    return model


def travelling(model: Any, words: Any) -> list[str]:
    return [name for name, *_ in layout_of(model, words).tensors]


NORM = [f"1.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]
ALL = ["0.weight", "0.bias", *NORM, "2.weight", "2.bias"]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (None, ALL),
        ([], ALL),
        ("*", ALL),
        ("2.*", ["2.weight", "2.bias"]),
        (["2.*", "0.bias"], ["0.bias", "2.weight", "2.bias"]),
        ("?.bias", ["0.bias", "1.bias", "2.bias"]),
        ("!*.running_*", [name for name in ALL if "running" not in name]),
        (["1.*", "!*.running_mean", "!*.num*"], ["1.weight", "1.bias", "1.running_var"]),
        ("trainable", ["1.weight", "1.bias", "2.weight", "2.bias"]),
        (["trainable", "!2.*", "*.running_mean"], ["1.weight", "1.bias", "1.running_mean"]),
        ("!trainable", ["0.weight", "0.bias", *NORM[2:]]),
    ],
)
def test_words_choose_tensors_in_the_models_order(words: Any, names: list[str]) -> None:
    assert travelling(network(), words) == names


@pytest.mark.parametrize("words", ["*.lora_*", "trainable", ["*.lora_A.default.weight", "*.lora_B.default.weight"]])
def test_a_lora_model_sends_its_adapters_alone(words: Any) -> None:
    assert travelling(adapted(), words) == [f"{PEFT}.lora_{letter}.default.weight" for letter in "AB"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("haed.*", r"no tensor of the model fits 'haed\.\*'"),
        (["2.*", "!7.*"], r"fits '7\.\*'"),
        (["2.*", "!2.*"], "leaves no tensor"),
        ([""], "'', which is no pattern"),
        (["!"], "'!', which is no pattern"),
        ([3], "3, which is no pattern"),
        (3, "tensors is a int"),
        (print, "tensors is a builtin"),
        ("2", "fits '2'"),
        ("[0-9].bias", "fits"),
    ],
)
def test_words_that_choose_nothing_are_errors_with_the_nearest_names(words: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        layout_of(network(), words)
    assert caught.value.hint


def test_the_nearest_name_is_said() -> None:
    with pytest.raises(ModelError) as caught:
        layout_of(network(), "1.runing_mean")
    assert "'1.running_mean'" in caught.value.hint


def test_trainable_needs_something_to_be_trained() -> None:
    with pytest.raises(ModelError, match="no parameter of the model has requires_grad"):
        layout_of(nn.Linear(2, 2).requires_grad_(False), "trainable")
    with pytest.raises(ModelError, match="arrays do not say"):
        bind({"w": np.zeros(2)}, "trainable")


def test_what_stays_at_home_is_not_touched() -> None:
    model = network()
    home = model[0].weight
    before = home.detach().clone()
    bound = bind(model, "2.*")
    assert list(bound.arena) == ["2.weight", "2.bias"]
    np.asarray(bound.arena.core)[:] = 0
    assert model[0].weight is home
    assert torch.equal(home, before)
    model[0] = nn.Linear(3, 3).double()
    model[1] = nn.Identity()
    model.append(nn.Linear(2, 2))
    assert bound.collect("train()") == [], "others may come, go, and change"
    model[2].add_module("extra", nn.Linear(2, 2))
    with pytest.raises(ModelError, match=r"new tensor '2\.extra\.(weight|bias)'"):
        bound.collect("train()")


def test_what_is_trainable_is_settled_when_the_model_is_bound() -> None:
    bound = bind(network(), "trainable")
    bound.model.requires_grad_(False)
    bound.model[0].requires_grad_(True)
    assert bound.collect("train()") == []
    bound.model.append(nn.Linear(2, 2).requires_grad_(False))
    assert bound.collect("train()") == []
    bound.model[3].requires_grad_(True)
    with pytest.raises(ModelError, match="new tensor '3"):
        bound.collect("train()")


def test_frozen_tensors_may_be_of_any_kind() -> None:
    model = network()
    model.register_buffer("phases", torch.zeros(2, dtype=torch.complex64))
    model.register_buffer("elsewhere", torch.zeros(2, device="meta"))
    assert travelling(model, "2.*") == ["2.weight", "2.bias"]


def test_a_tied_tensor_travels_if_one_of_its_names_does_and_none_stays() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(4, 2), "head": nn.Linear(2, 4, bias=False)})
    model["head"].weight = model["embed"].weight
    assert travelling(model, "head.*") == ["embed.weight"], "under its first name"
    with pytest.raises(ModelError, match="leaves no tensor"):
        travelling(model, ["head.*", "!embed.*"])


def test_both_ends_must_choose_the_same() -> None:
    core = bind(network(), "2.*").arena.core
    with pytest.raises(ModelError, match=r"job's: 0\.weight \(float32 .*\) is in this model and missing") as caught:
        attach(network(), core)
    assert "the same choice of tensors" in caught.value.hint


def test_arrays_are_chosen_by_name() -> None:
    bound = bind({"head": np.zeros(2), "body": np.ones(3)}, ["!body"])
    assert list(bound.arena) == ["head"]
    bound.model["body"] = np.zeros(7)
    assert bound.collect("train()") == []


def test_models_are_personal_where_what_is_trained_stays_at_home() -> None:
    def model() -> nn.Module:
        made = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
        made[0].requires_grad_(False)
        return made

    assert not bind(model()).personal
    assert not bind(model(), "!0.*").personal, "frozen weights are the same everywhere"
    assert bind(model(), "!2.*").personal
    assert bind(model(), "!1.running_*").personal, "statistics change in training"
    assert not bind({"w": np.zeros(1), "b": np.zeros(1)}).personal
    assert bind({"w": np.zeros(1), "b": np.zeros(1)}, "w").personal


def test_patterns_know_two_signs_alone() -> None:
    choice = Choice(["a.[b]*"])
    assert choice.takes(Named(["a.[b]c"], None))
    assert not choice.takes(Named(["a.bc"], None))
