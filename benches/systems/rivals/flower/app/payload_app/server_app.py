"""FedAvg over one array. The strategy calls ``note`` before the first round and after each round."""

from __future__ import annotations

import json
import time
from pathlib import Path

from contract import Job
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    folder = Path(str(context.run_config["folder"]))
    job = Job(folder=folder, index=0, **json.loads((folder / "job.json").read_text()))
    begin = 0.0

    def note(number: int, arrays: ArrayRecord) -> None:
        nonlocal begin
        end = time.perf_counter()
        if number:
            (mean,) = arrays.to_numpy_ndarrays()
            # FedAvg begins a round with the mean of the round before. In the contract it begins with a model of the
            # round's number, so the difference is subtracted.
            job.done(number, begin, end, mean - (number - 1) * ((job.clients + 1) / 2 - 1))
        begin = time.perf_counter()

    FedAvg(fraction_evaluate=0.0, min_train_nodes=job.clients, min_available_nodes=job.clients).start(
        grid=grid, initial_arrays=ArrayRecord([job.model(1)]), num_rounds=job.rounds, evaluate_fn=note
    )
