"""Adds 1 to each element of each array."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    arrays = ArrayRecord(
        {name: Array(np.asarray(array.numpy() + 1)) for name, array in message.content["arrays"].items()}
    )
    metrics = MetricRecord({"num-examples": 1 + context.node_config["partition-id"]})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
