"""A Flower client: trains the model on its part of the data."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from edge_app import learning

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model of the message, and send it back."""
    model = {name: array.numpy().copy() for name, array in message.content["arrays"].items()}
    place = context.node_config
    samples = learning.train(model, learning.part(int(place["partition-id"]), int(place["num-partitions"])))
    arrays = ArrayRecord({name: _array(values) for name, values in model.items()})
    return Message(
        content=RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": samples})}), reply_to=message
    )


def _array(values: learning.Array) -> object:
    from flwr.app import Array

    return Array(np.ascontiguousarray(values))
