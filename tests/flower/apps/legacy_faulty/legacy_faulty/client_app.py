"""Adds one to the model; the client of the faulty partition, or each client if that is -1, raises or exits."""

from __future__ import annotations

import os

from flwr.client import Client, ClientApp, NumPyClient
from flwr.common import Context, NDArrays, Scalar


class Adder(NumPyClient):
    def __init__(self, fault: str | None) -> None:
        self.fault = fault

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        if self.fault == "exits":
            os._exit(3)  # as a crash in native code does: nothing is cleaned up
        if self.fault == "raises":
            raise ValueError("this client cannot train")
        return [parameters[0] + 1], 1, {}

    def evaluate(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[float, int, dict[str, Scalar]]:
        return 0.0, 1, {}


def client_fn(context: Context) -> Client:
    is_faulty = context.run_config["faulty-partition"] in (-1, context.node_config["partition-id"])
    return Adder(str(context.run_config["fault"]) if is_faulty else None).to_client()


app = ClientApp(client_fn)
