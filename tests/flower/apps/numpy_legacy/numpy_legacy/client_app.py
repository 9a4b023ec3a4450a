"""A NumPyClient, made by client_fn for each message: it moves the centre towards the mean of its own points."""

from __future__ import annotations

import numpy as np
from flwr.client import Client, ClientApp, NumPyClient
from flwr.common import Context, NDArrays, Scalar

from numpy_legacy import DIMENSIONS


class CentreClient(NumPyClient):
    def __init__(self, partition: int, seed: int, step: float) -> None:
        rng = np.random.default_rng((seed, partition))
        # Partitions have different sizes, so that clients have different weights.
        self.points = partition + rng.standard_normal((50 + 10 * partition, DIMENSIONS))
        self.step = step

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        centre, rounds = parameters
        moved = centre + self.step * (self.points.mean(axis=0) - centre)
        return [moved, rounds + 1], len(self.points), {"round": config["round"]}

    def evaluate(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[float, int, dict[str, Scalar]]:
        distance = float(np.mean((self.points - parameters[0]) ** 2))
        return distance, len(self.points), {"distance": distance}


def client_fn(context: Context) -> Client:
    partition, seed = context.node_config["partition-id"], context.run_config["seed"]
    return CentreClient(partition, seed, context.run_config["learning-rate"]).to_client()


app = ClientApp(client_fn)
