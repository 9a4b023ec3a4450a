"""FedAvg over the payload; writes seconds of each round, and this process's memory before and at its most."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

ARRAYS = 8

app = ServerApp()


def peak_rss() -> int:
    """Return this process's peak resident memory, in bytes. ``ru_maxrss`` would include its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    before = peak_rss()
    elements = config["mib"] * (1 << 20) // 4 // ARRAYS
    times = []

    def note(number: int, arrays: ArrayRecord) -> None:
        times.append(time.perf_counter())

    FedAvg(fraction_evaluate=0.0, min_train_nodes=config["clients"], min_available_nodes=config["clients"]).start(
        grid=grid,
        initial_arrays=ArrayRecord([np.full(elements, number, np.float32) for number in range(ARRAYS)]),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=note,
    )
    report = {
        "seconds": [later - earlier for earlier, later in pairwise(times)],
        "before_bytes": before,
        "peak_bytes": peak_rss(),
    }
    Path(config["output"]).write_text(json.dumps(report))
