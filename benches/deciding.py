"""Measures the control plane: its decisions for 10,000 clients on 100 nodes, and one estimate of a queue's length."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from benches.common import FOLDER, Figure, note

COMMAND = ["cargo", "run", "--release", "--quiet", "-p", "thalweg-control", "--example", "decide_bench"]
# Limits, in seconds.
DECISION = 1e-3
ESTIMATE = 1e-6


def deciding() -> list[Figure]:
    """Run the benchmark of the crate ``thalweg-control``."""
    note("decisions of the control plane (builds the bench first)")
    done = subprocess.run(COMMAND, check=True, stdout=subprocess.PIPE, cwd=FOLDER)
    result: dict[str, Any] = json.loads(done.stdout)
    estimate = result.pop("estimate")
    return [
        *(_figure(f"10,000 clients on 100 nodes, {task}", one, DECISION, "ms", 1e3) for task, one in result.items()),
        _figure("one estimate of a queue", estimate, ESTIMATE, "ns", 1e9),
    ]


def _figure(name: str, seconds: dict[str, float], limit: float, unit: str, scale: float) -> Figure:
    low, middle, high = (f"{seconds[key] * scale:.3g}" for key in ("least", "median", "most"))
    value = f"{middle} ({low}..{high}) {unit}"
    return Figure(name, value, f"{limit * scale:g} {unit}", seconds["median"] <= limit, seconds)
