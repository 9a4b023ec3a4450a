"""FedAvg over the clients' logistic regressions."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from sklearn_iris.task import model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    start = model(1)
    FedAvg().start(
        grid=grid,
        initial_arrays=ArrayRecord([start.coef_, start.intercept_]),
        num_rounds=context.run_config["num-server-rounds"],
    )
