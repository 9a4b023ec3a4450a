"""The same app for thalweg's own rounds: ``own.py:App``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from edge_app import learning


class App:
    """Trains a small network on digits, as the Flower app does."""

    def __init__(self, output: str = "rounds.jsonl") -> None:
        """Take the file to which the server writes when each round ended."""
        self.output = output
        self.number = 0

    def model(self) -> learning.Model:
        """Return the first global model."""
        return learning.new_model()

    def client_data(self, name: str, index: int, clients: int, seed: int) -> learning.Data:
        """Return a client's part of the training images."""
        return learning.part(index, clients)

    def train(self, model: learning.Model, data: learning.Data, config: dict[str, Any]) -> tuple[int, dict[str, float]]:
        """Train the model in place; return the number of samples and no metrics."""
        return learning.train(model, data), {}

    def test_data(self) -> learning.Data:
        """Return the images that no client trains on."""
        return learning.test_part()

    def evaluate(self, model: learning.Model, data: learning.Data) -> dict[str, float]:
        """Return the accuracy, and write down when the round ended."""
        share = learning.accuracy(model, data)
        self.number += 1
        learning.write_round(self.output, self.number, model, share)
        return {"accuracy": share}
