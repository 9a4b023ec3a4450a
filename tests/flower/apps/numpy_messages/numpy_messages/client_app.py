"""Trains and evaluates the linear model on the client's own partition."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from numpy_messages.task import Data, Model

app = ClientApp()


def received(message: Message, context: Context) -> tuple[Model, Data]:
    model = Model()
    model.load({name: array.numpy() for name, array in message.content["arrays"].items()})
    return model, Data(context.node_config["partition-id"], context.run_config["seed"])


@app.train()
def train(message: Message, context: Context) -> Message:
    model, data = received(message, context)
    model.train(data, message.content["config"]["learning-rate"])
    arrays = ArrayRecord({name: Array(value) for name, value in model.state().items()})
    metrics = MetricRecord({"num-examples": len(data), "loss": model.loss(data)})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model, data = received(message, context)
    metrics = MetricRecord({"num-examples": len(data), "loss": model.loss(data)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
