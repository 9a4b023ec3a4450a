"""GPT-2 and its adapters, with the extra ``thalweg[lm]``: sizes, initial values, training, and what travels."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from thalweg import models
from thalweg.apps.known_app import KnownApp
from thalweg.errors import ModelError
from thalweg.tensors.binding import bind

with_lm = pytest.mark.skipif(
    not (find_spec("transformers") and find_spec("peft")),
    reason="transformers and peft are not installed: make test-extras",
)


def app(name: str, client: int = 0) -> KnownApp:
    return KnownApp(
        model=name,
        data="english",
        partition="iid",
        clients=2,
        client=client,
        seed=3,
        data_root=None,
        threads=1,
        samples=40,
        test_samples=20,
        batch=10,
        learning_rate=0.1,
    )


def values(width: int, layers: int, tokens: int, positions: int) -> int:
    """Count a GPT-2's values: four matrices with biases and two normalisations a layer, and a last normalisation."""
    layer = 12 * width**2 + 13 * width
    return (tokens + positions) * width + layers * layer + 2 * width


def test_sizes_follow_from_the_configurations() -> None:
    for name, size in (("gpt2", values(768, 12, 50257, 1024)), ("gpt2-mini", values(128, 4, 256, 128))):
        spec = models.find(name)
        assert (spec.values, spec.parameters, spec.layout_bytes) == (size, size, 4 * size)


def test_without_the_extra_the_hint_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"'gpt2-mini\+lora4' needs transformers: .*pip install 'thalweg\[lm\]'"):
        models.build("gpt2-mini+lora4")


@with_lm
@pytest.mark.parametrize("name", ["gpt2", "gpt2+lora16", "gpt2-mini", "gpt2-mini+lora4"])
def test_the_facts_are_those_of_the_network(name: str) -> None:
    with torch.device("meta"):  # shapes without memory
        network, spec = models.build(name), models.find(name)
    parameters = list(network.parameters())
    assert sum(p.numel() for p in parameters) == spec.values
    assert sum(p.numel() for p in parameters if p.requires_grad) == spec.parameters
    assert len(parameters) == spec.tensors


@with_lm
@pytest.mark.parametrize(("name", "tensors"), [("gpt2-mini", 52), ("gpt2-mini+lora4", 8)])
def test_what_travels_has_the_size_that_the_table_says(name: str, tensors: int) -> None:
    known_app = app(name)
    layout = bind(known_app.model(), known_app.tensors).arena.core.layout
    assert len(layout.tensors) == tensors
    assert layout.bytes == models.find(name).layout_bytes == models.payload_bytes(f"payload:{name}")


@with_lm
def test_the_seed_decides_the_frozen_values_and_the_adapters() -> None:
    one, same = (models.build("gpt2-mini+lora4", seed=5).state_dict() for _ in range(2))
    other = models.build("gpt2-mini+lora4", seed=6).state_dict()
    assert all(torch.equal(one[name], same[name]) for name in one)
    drawn = [name for name in one if name.endswith(("lora_A.default.weight", "wte.weight"))]
    assert len(drawn) == 5
    assert not any(torch.equal(one[name], other[name]) for name in drawn)


@with_lm
@pytest.mark.parametrize("name", ["gpt2-mini", "gpt2-mini+lora4"])
def test_training_lowers_the_loss_and_moves_what_travels_alone(name: str) -> None:
    known_app = app(name)
    model: nn.Module = known_app.model()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    untrained = known_app.evaluate(model, known_app.test_data())
    # The cross-entropy of 256 equally likely bytes: ln 256 = 5.5.
    assert untrained["loss"] == pytest.approx(5.5, abs=0.1)
    for number in (1, 2, 3):
        samples, metrics = known_app.train(model, known_app.train_data(), {"round": number})
    assert samples == 20
    trained = known_app.evaluate(model, known_app.test_data())
    assert trained["loss"] < untrained["loss"]
    assert 0 <= metrics["train_accuracy"] <= 1
    frozen = {key for key, parameter in model.named_parameters() if not parameter.requires_grad}
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in frozen)
    assert bool(frozen) == ("lora" in name)
