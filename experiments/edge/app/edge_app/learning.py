"""A network of one hidden layer on handwritten digits: 1 MiB of weights, a fraction of a second of training a round."""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Model = dict[str, Array]
Data = tuple[Array, NDArray[np.int64]]

# EDGE_HIDDEN sets the size of the model: with 3500 units it has 1 MiB.
PIXELS, HIDDEN, CLASSES = 64, int(os.environ.get("EDGE_HIDDEN", "3500")), 10
# Images that clients train on. The others are for the evaluation.
TRAINED = 1500
STEPS = 6
# EDGE_RATE sets the learning rate.
RATE = float(os.environ.get("EDGE_RATE", "50"))


def new_model() -> Model:
    """Return the first global model, the same in each process."""
    numbers = np.random.default_rng(7)
    return {
        "in": (numbers.normal(0, 1, (PIXELS, HIDDEN)) / PIXELS**0.5).astype(np.float32),
        "out": np.zeros((HIDDEN, CLASSES), np.float32),
    }


def digits() -> Data:
    """Return all images with their labels, shuffled the same way in each process."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    return (images[order] / 16.0).astype(np.float32), labels[order]


def part(index: int, clients: int) -> Data:
    """Return the training images of one of ``clients`` clients."""
    images, labels = digits()
    return images[index:TRAINED:clients], labels[index:TRAINED:clients]


def test_part() -> Data:
    """Return the images that no client trains on."""
    images, labels = digits()
    return images[TRAINED:], labels[TRAINED:]


def survivors(seed: int, number: int, clients: int, left: int) -> set[int]:
    """Return the indices of the ``left`` clients that do not vanish in a round."""
    return set(random.Random(1000 * seed + number).sample(range(clients), left))


def train(model: Model, data: Data) -> int:
    """Take a few steps of gradient descent in place; return the number of samples."""
    images, labels = data
    wanted = np.eye(CLASSES, dtype=np.float32)[labels]
    for _ in range(STEPS):
        hidden = np.maximum(images @ model["in"], 0) / HIDDEN**0.5
        error = (_shares(hidden @ model["out"]) - wanted) / len(images)
        back = (error @ model["out"].T) * (hidden > 0) / HIDDEN**0.5
        model["out"] -= RATE * hidden.T @ error
        model["in"] -= RATE * images.T @ back
    return len(images)


def accuracy(model: Model, data: Data) -> float:
    """Return the share of images that the model labels correctly."""
    images, labels = data
    hidden = np.maximum(images @ model["in"], 0)
    return float(((hidden @ model["out"]).argmax(axis=1) == labels).mean())


def digest(model: Model) -> str:
    """Return a short digest of a model's values."""
    return hashlib.sha256(b"".join(model[name].tobytes() for name in sorted(model))).hexdigest()[:16]


def write_round(output: str, number: int, model: Model, share: float) -> None:
    """Append a line: when the round ended, its model's accuracy, and a digest that changes with the model."""
    line = {"time": time.time(), "round": number, "accuracy": share, "model": digest(model)}
    with Path(output).open("a") as file:
        file.write(json.dumps(line) + "\n")


def _shares(scores: Array) -> Array:
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: Array = scores / scores.sum(axis=1, keepdims=True)
    return shares
