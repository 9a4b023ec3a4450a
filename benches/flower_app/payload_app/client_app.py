"""Sends back the arrays that it receives, without training."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    arrays = ArrayRecord(message.content["arrays"].to_numpy_ndarrays())
    metrics = MetricRecord({"num-examples": 1})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
