"""Runs DefaultWorkflow in a LegacyContext, and fails if a client's state does not last from round to round."""

from __future__ import annotations

import numpy as np
from flwr.common import Context, Metrics, ndarrays_to_parameters
from flwr.server import Grid, LegacyContext, ServerApp, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow

app = ServerApp()


def least(results: list[tuple[int, Metrics]]) -> Metrics:
    return {name: min(metrics[name] for _, metrics in results) for name in ("trainings", "messages")}


@app.main()
def main(grid: Grid, context: Context) -> None:
    rounds = context.run_config["num-server-rounds"]
    strategy = FedAvg(
        min_available_clients=2,
        initial_parameters=ndarrays_to_parameters([np.zeros((4, 3), np.float32), np.zeros(2, np.float32)]),
        fit_metrics_aggregation_fn=least,
        evaluate_metrics_aggregation_fn=least,
    )
    legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=rounds), strategy=strategy)
    DefaultWorkflow()(grid, legacy)
    history = legacy.history
    trained = [times for _, times in history.metrics_distributed_fit["trainings"]]
    if trained != list(range(1, rounds + 1)):
        raise RuntimeError(f"after each round clients had trained {trained} times: their state was lost")
    seen = [count for _, count in history.metrics_distributed["messages"]]
    if seen != list(range(2, 2 * rounds + 1, 2)):  # each round trains and evaluates
        raise RuntimeError(f"after each round mods had seen {seen} messages")
    means = [loss for _, loss in history.losses_distributed]
    if means != list(range(1, rounds + 1)):
        raise RuntimeError(f"clients add one each round, and the model's means were {means}")
