"""With the same seed, a vision app learns the same model over thalweg as on Flower's own engine."""

from __future__ import annotations

import importlib.util
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.flower.learning import learned, prepare, same_bits

ROUNDS = 2
POINTS = 0.002
# The release of Flower for whose engine tests.flower.reference is written.
RELEASE = "1.42."
HAS_DATA = importlib.util.find_spec("flwr_datasets") is not None
FOUND = "none" if importlib.util.find_spec("flwr") is None else version("flwr")

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not HAS_DATA, reason="flwr_datasets is not installed"),
    pytest.mark.skipif(not FOUND.startswith(RELEASE), reason=f"Flower's engine is known as of {RELEASE}x, not {FOUND}"),
]


def test_a_vision_app_learns_what_it_does_on_flowers_engine(tmp_path: Path) -> None:
    prepare(tmp_path)
    model, accuracy = learned(tmp_path, "flower", ROUNDS)
    assert accuracy[0] < 0.2
    assert accuracy[-1] > 0.8
    collected, same = learned(tmp_path, "collected", ROUNDS)
    assert same == accuracy
    assert same_bits(collected, model)
    folded, near = learned(tmp_path, "folded", ROUNDS)
    assert near == pytest.approx(accuracy, abs=POINTS)
    assert {name: tensor.dtype for name, tensor in folded.items()} == {name: one.dtype for name, one in model.items()}
