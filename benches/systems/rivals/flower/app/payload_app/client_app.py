"""Adds the client's number to the arrays that it receives."""

from __future__ import annotations

from contract import train
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def add(message: Message, context: Context) -> Message:
    (array,) = message.content["arrays"].to_numpy_ndarrays()
    train(array, int(context.node_config["partition-id"]))
    metrics = MetricRecord({"num-examples": 1})
    return Message(content=RecordDict({"arrays": ArrayRecord([array]), "metrics": metrics}), reply_to=message)
