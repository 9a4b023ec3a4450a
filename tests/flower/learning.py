"""Runs a vision app on Flower's own engine and over thalweg with the same seed; returns the model and its accuracy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from thalweg.flower import data

ROOT = Path(__file__).parents[2]
APP = Path(__file__).parent / "apps" / "torch_vision"
# With two clients a sum has the same bits in either order. With more, Flower's sums depend on the order of arrival.
CLIENTS = 2
RUN = ("thalweg", "flower", "run", "--transport", "memory")
WAYS: Mapping[str, tuple[str, ...]] = {
    "flower": ("tests.flower.reference",),
    "collected": (*RUN, "--fold", "off"),
    "folded": (*RUN, "--fold", "auto"),
}


def prepare(folder: Path) -> None:
    """Write the data that the app loads, with digits instead of CIFAR-10."""
    data.prepare(APP, folder, substitute="mnist")


def learned(folder: Path, way: str, rounds: int) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Run the app in ``folder``, and return the model and the accuracy before the first and after each round."""
    own = {
        "HF_HOME": str(folder / "cache"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT)))),
    }
    config = f'num-server-rounds={rounds} output="{folder / way}"'
    done = subprocess.run(
        [sys.executable, "-m", *WAYS[way], str(APP), "--clients", str(CLIENTS), "--run-config", config],
        cwd=folder,
        env={**os.environ, **own, **data.ENVIRONMENT},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{way} ended with {done.returncode}: {done.stderr[-4000:]}")
    model = torch.load(folder / f"{way}.pt", weights_only=True)
    return model, json.loads((folder / f"{way}.json").read_text())["accuracy"]


def same_bits(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Whether two models have the same tensors, bit for bit."""
    return one.keys() == other.keys() and all(
        tensor.dtype == other[name].dtype and torch.equal(tensor, other[name]) for name, tensor in one.items()
    )
