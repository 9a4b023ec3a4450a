"""FedAvg over zeros: 3 arrays of 256 KiB, and a counter as in batch normalisation. The result is saved."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

ELEMENTS = 1 << 16

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    start = {f"w{number}": np.zeros(ELEMENTS, np.float32) for number in range(3)}
    arrays = {"w0": start["w0"], "steps": np.zeros((), np.int64), "w1": start["w1"], "w2": start["w2"]}
    result = FedAvg(fraction_evaluate=0.0).start(
        grid=grid,
        initial_arrays=ArrayRecord({name: Array(array) for name, array in arrays.items()}),
        num_rounds=context.run_config["num-server-rounds"],
    )
    np.savez(context.run_config["output"], **{name: array.numpy() for name, array in result.arrays.items()})
