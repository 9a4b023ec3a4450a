"""The legacy FedAvg with initial parameters of its own, made by server_fn."""

from __future__ import annotations

import numpy as np
from flwr.common import Context, Metrics, Scalar, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg

from numpy_legacy import DIMENSIONS


def weighted(results: list[tuple[int, Metrics]]) -> Metrics:
    total = sum(count for count, _ in results)
    return {"distance": sum(count * metrics["distance"] for count, metrics in results) / total}


def config_of(server_round: int) -> dict[str, Scalar]:
    return {"round": server_round}


def server_fn(context: Context) -> ServerAppComponents:
    start = [np.zeros(DIMENSIONS), np.zeros((), np.int64)]
    strategy = FedAvg(
        min_available_clients=2,
        initial_parameters=ndarrays_to_parameters(start),
        on_fit_config_fn=config_of,
        evaluate_metrics_aggregation_fn=weighted,
    )
    rounds = context.run_config["num-server-rounds"]
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))


app = ServerApp(server_fn=server_fn)
