"""Small apps for tests: one that works, one that reports measurements, and some whose faults end a job."""

from __future__ import annotations

from typing import Any

import numpy as np


class Good:
    def model(self) -> dict[str, Any]:
        return {"w": np.zeros(10, np.float32)}

    def train(self, model: Any, data: Any, config: Any) -> tuple[int, dict[str, Any]]:
        model["w"][:] += 1
        return 1, {}

    def train_data(self) -> tuple[()]:
        return ()


class Diverging(Good):
    def train(self, model: Any, data: Any, config: Any) -> tuple[int, dict[str, Any]]:
        model["w"][:] = np.nan
        return 1, {}


class Failing(Good):
    def model(self) -> dict[str, Any]:
        raise ValueError("no model today")


class Unmeasured(Good):
    def test_data(self) -> tuple[()]:
        return ()

    def evaluate(self, model: Any, data: Any) -> dict[str, Any]:
        return {"accuracy": np.ones(3)}


class Measured(Good):
    def test_data(self) -> tuple[()]:
        return ()

    def evaluate(self, model: Any, data: Any) -> dict[str, Any]:
        return {"accuracy": 0.5, "loss": 2.0}
