"""Speed of sealed records on one core, by the example of the crate ``thalweg-seal`` in the release profile."""

from __future__ import annotations

import json
import subprocess
from typing import Any, Final

from benches.common import FOLDER, Figure, note

LEAST: Final = 1.5
COMMAND: Final = (
    *("cargo", "run", "--quiet", "--release"),
    *("--package", "thalweg-seal", "--features", "baselines", "--example", "throughput"),
)


def sealing() -> list[Figure]:
    """Measure GB/s of plaintext sealed and opened, by cipher and record size."""
    note("sealing and opening")
    done = subprocess.run([*COMMAND, "--", "--json"], cwd=FOLDER, check=True, stdout=subprocess.PIPE, text=True)
    return [figure(json.loads(line)) for line in done.stdout.splitlines()]


def figure(cell: dict[str, Any]) -> Figure:
    name = f"{cell['cipher']}, records of {cell['record']} bytes, one core"
    value = f"seal {cell['seal']:.2f}, open {cell['open']:.2f} GB/s; {cell['overhead']:.2%} longer"
    # AES-CBC is only for comparison.
    reached = None if cell["cipher"] == "aes-cbc" else min(cell["seal"], cell["open"]) >= LEAST
    return Figure(name, value, f"{LEAST} GB/s", reached, cell)
