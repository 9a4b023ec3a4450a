"""A vision app learns the same over thalweg as on Flower's own engine, by the same seed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from thalweg.flower import data as flower_data

ROOT = Path(__file__).parents[2]
APP = Path(__file__).parent / "apps" / "torch_vision"
CLIENTS = 2  # the sum of two is the same in either order; Flower's own bits depend on the order of more
ROUNDS = 2
POINTS = 0.002

# The release whose engine tests.flower.reference knows.
RELEASE = "1.42."
HAS_DATA = importlib.util.find_spec("flwr_datasets") is not None
FOUND = "none" if importlib.util.find_spec("flwr") is None else version("flwr")

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not HAS_DATA, reason="flwr_datasets is not installed"),
    pytest.mark.skipif(not FOUND.startswith(RELEASE), reason=f"Flower's engine is known as of {RELEASE}x, not {FOUND}"),
]


def learned(folder: Path, name: str, *command: str) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Run the app in ``folder``, and return the model and the accuracy before the first and after each round."""
    own = {
        "HF_HOME": str(folder / "cache"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT)))),
    }
    config = f'num-server-rounds={ROUNDS} output="{folder / name}"'
    done = subprocess.run(
        [sys.executable, "-m", *command, str(APP), "--clients", str(CLIENTS), "--run-config", config],
        cwd=folder,
        env={**os.environ, **own, **flower_data.ENVIRONMENT},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    model = torch.load(folder / f"{name}.pt", weights_only=True)
    return model, json.loads((folder / f"{name}.json").read_text())["accuracy"]


def test_a_vision_app_learns_what_it_does_on_flowers_engine(tmp_path: Path) -> None:
    flower_data.prepare(APP, tmp_path, substitute="mnist")
    model, accuracy = learned(tmp_path, "flower", "tests.flower.reference")
    assert accuracy[0] < 0.2
    assert accuracy[-1] > 0.8
    run = ("thalweg", "flower", "run", "--transport", "memory", "--record", str(tmp_path / "runs"))
    collected, same = learned(tmp_path, "collected", *run, "--fold", "off")
    assert same == accuracy
    assert collected.keys() == model.keys()
    for name, tensor in model.items():
        assert collected[name].dtype == tensor.dtype, name
        assert torch.equal(collected[name], tensor), name
    folded, near = learned(tmp_path, "folded", *run, "--fold", "auto")
    assert near == pytest.approx(accuracy, abs=POINTS)
    assert {name: tensor.dtype for name, tensor in folded.items()} == {name: one.dtype for name, one in model.items()}
