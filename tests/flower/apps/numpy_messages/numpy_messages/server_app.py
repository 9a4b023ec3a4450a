"""FedAvg over the clients' linear models; the run's result is saved if the configuration names a file."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from numpy_messages.task import Model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    start = ArrayRecord({name: Array(value) for name, value in Model().state().items()})
    result = FedAvg().start(
        grid=grid,
        initial_arrays=start,
        train_config=ConfigRecord({"learning-rate": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
    )
    output = context.run_config["output"]
    if output:
        np.savez(output, **{name: array.numpy() for name, array in result.arrays.items()})
