"""Top aggregators of a tree: each node as the top for its share of the bytes, compared with one top for all bytes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benches.common import MIB, Figure, Spread, note

NODES = 5
SIZE = 16 * MIB
LINK = "200mbit"
TURNS, ROUNDS = 3, 4
# A single top receives N-1 sums and sends N-1 models. Each of N tops receives and sends (N-1)/N of both.
LEAST = 3.0
PLAN = f"""
[job]
clients = {NODES}
rounds = {ROUNDS}

[model]
name = "payload:{SIZE // MIB}MiB"

[aggregation]
shape = "tree"

[nodes]
count = {NODES}
capacity = 1
link = "{LINK}"

[network]
rate = "unlimited"
emulator = "packet"
"""


def tops() -> list[Figure]:
    """Measure rounds of five nodes whose links are the bottleneck; runs of both kinds take turns. Needs root."""
    seconds: dict[str, list[float]] = {"sharded": [], "first-finished": []}
    completed: dict[str, list[float]] = {name: [] for name in seconds}
    for turn in range(TURNS):
        for top in seconds:
            note(f"turn {turn + 1}/{TURNS}: {NODES} nodes on links of {LINK}, top {top}")
            done = _run(top)
            # Leave out the first round, in which the root sends the model to all nodes in both cases.
            seconds[top] += [row["seconds"] for row in done["rounds"][1:]]
            completed[top] += done["tree"]["aggregation_completion_seconds"][1:]
    return [
        _figure("a round", seconds, LEAST),
        _figure("from the first whole update to the mean", completed, None),
    ]


def _run(top: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "tops.toml"
        plan.write_text(PLAN)
        command = [sys.executable, "-m", "thalweg", "run", str(plan), "--top", top, "--json", "--record", f"{folder}/r"]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    done: dict[str, Any] = json.loads(said.stdout)
    return done


def _figure(what: str, values: dict[str, list[float]], least: float | None) -> Figure:
    spreads = {name: Spread.of(seconds) for name, seconds in values.items()}
    times = spreads["first-finished"].median / spreads["sharded"].median
    value = f"{times:.1f} times: {', '.join(f'{name} {one.text()} s' for name, one in spreads.items())}"
    limit = "no limit" if least is None else f"{least:.0f} times"
    name = f"{what} of {NODES} nodes on links of {LINK}, sharded against one top"
    details = {top: vars(spread) for top, spread in spreads.items()}
    return Figure(name, value, limit, None if least is None else times >= least, details)
