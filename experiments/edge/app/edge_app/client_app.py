"""A Flower client: trains the model on its part of the data."""

from __future__ import annotations

import os
import signal

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from edge_app import learning

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model of the message, and send it back; or kill this process, if the node vanishes in this round."""
    index, clients = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    number, left = int(message.content["config"]["server-round"]), int(context.run_config["survivors"])
    if left and index not in learning.survivors(int(context.run_config["seed"]), number, clients, left):
        os.kill(os.getpid(), signal.SIGKILL)
    model = {name: array.numpy().copy() for name, array in message.content["arrays"].items()}
    samples = learning.train(model, learning.part(index, clients))
    arrays = ArrayRecord({name: _array(values) for name, values in model.items()})
    return Message(
        content=RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": samples})}), reply_to=message
    )


def _array(values: learning.Array) -> object:
    from flwr.app import Array

    return Array(np.ascontiguousarray(values))
