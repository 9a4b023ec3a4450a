"""Calculates how the settings of the outer step change the speed of DiLoCo's peers on a steady slope.

python -m benches.diloco.speed

Training is modelled: it moves one value by 1 in each step, at each peer alike. Outer steps, overlap and mixing are
those of Streaming DiLoCo with one fragment. The speed is the value at the end divided by the number of steps. Without
outer steps it is 1.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

STEPS = 500


@dataclass(frozen=True)
class Setting:
    """The settings of ``thalweg.diloco``; ``rate`` and ``momentum`` are those of the outer SGD (Nesterov)."""

    rate: float
    momentum: float
    keep: float
    every: int = 28
    overlap: int = 3


SETTINGS = [
    Setting(1.0, 0.0, 0.5),
    Setting(0.7, 0.5, 0.5),
    Setting(1.0, 0.5, 0.5),
    Setting(0.7, 0.9, 0.5),
    Setting(1.0, 0.5, 0.0),
    Setting(0.7, 0.5, 0.5, every=56, overlap=5),
    Setting(0.7, 0.9, 0.5, every=56, overlap=5),
    Setting(1.0, 0.5, 0.0, every=56, overlap=5),
]


def speed(setting: Setting, steps: int = STEPS) -> float:
    """Return the speed: the value that training moves, after ``steps`` steps, divided by ``steps``."""
    value = shared = velocity = 0.0
    sent: tuple[int, float] | None = None
    for step in range(1, steps + 1):
        value += 1.0
        if sent is not None and step - sent[0] >= setting.overlap:
            gradient = shared - sent[1]
            velocity = setting.momentum * velocity + gradient
            shared -= setting.rate * (gradient + setting.momentum * velocity)
            value = setting.keep * value + (1 - setting.keep) * shared
            sent = None
        if step % setting.every == 0:
            sent = step, value
    return value / steps


def main() -> int:
    """Print a row for each setting."""
    sys.stdout.write("| every | overlap | outer rate | momentum | keep | speed |\n|---|---|---|---|---|---|\n")
    for one in SETTINGS:
        cells = [one.every, one.overlap, one.rate, one.momentum, one.keep, f"{speed(one):.2f}"]
        sys.stdout.write(f"| {' | '.join(map(str, cells))} |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
