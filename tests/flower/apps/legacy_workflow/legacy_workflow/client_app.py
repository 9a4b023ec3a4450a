"""A client that keeps the number of its trainings in its state, and a mod that counts the messages through it."""

from __future__ import annotations

from flwr.app import ConfigRecord, Context, Message, MetricRecord
from flwr.client import Client, ClientApp, NumPyClient
from flwr.common import NDArrays, Scalar


class CountingClient(NumPyClient):
    """Adds one to the model, and reports how often it has trained."""

    def __init__(self, context: Context) -> None:
        self.partition = context.node_config["partition-id"]
        self.trainings = context.state.setdefault("trainings", MetricRecord({"count": 0}))
        self.seen = context.state["seen"]

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        self.trainings["count"] += 1
        return [one + 1 for one in parameters], 1 + self.partition, self.counts()

    def evaluate(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[float, int, dict[str, Scalar]]:
        return float(parameters[0].mean()), 1, self.counts()

    def counts(self) -> dict[str, Scalar]:
        return {"trainings": self.trainings["count"], "messages": self.seen["count"]}


def counted(message: Message, context: Context, call_next) -> Message:
    """Count each message in the state, before the app sees it."""
    seen = context.state.setdefault("seen", ConfigRecord({"count": 0}))
    seen["count"] += 1
    return call_next(message, context)


def client_fn(context: Context) -> Client:
    return CountingClient(context).to_client()


app = ClientApp(client_fn, mods=[counted])
