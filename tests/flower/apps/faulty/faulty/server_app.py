"""Trains round by round, and fails if a misbehaving client changed the model."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    rounds = context.run_config["num-server-rounds"]
    result = FedAvg(fraction_evaluate=0.0).start(
        grid=grid,
        initial_arrays=ArrayRecord({"w": Array(np.zeros(16, np.float32))}),
        num_rounds=rounds,
        timeout=context.run_config["timeout"],
    )
    found = result.arrays["w"].numpy()
    well = context.run_config["faulty-partition"] >= 0
    if well and not np.array_equal(found, np.full(16, rounds, np.float32)):
        raise RuntimeError(f"the clients that were well added one each round, and the model is {found}")
