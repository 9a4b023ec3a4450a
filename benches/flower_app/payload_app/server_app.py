"""FedAvg over the payload; writes seconds of each round, and this process's memory before and at its most."""

from __future__ import annotations

import json
import resource
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

ARRAYS = 8

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
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
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    Path(config["output"]).write_text(json.dumps(report))
