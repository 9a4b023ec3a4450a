"""Trains and evaluates the network on the client's own partition."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from torch_vision.task import Net, load, test, train

app = ClientApp()


def received(message: Message, context: Context):
    torch.set_num_threads(1)
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    node, config = context.node_config, context.run_config
    # The order of batches differs between rounds, and is the same in each run.
    seed = 1000 * config["seed"] + message.content["config"]["server-round"]
    return net, load(node["partition-id"], node["num-partitions"], config["batch-size"], seed)


@app.train()
def train_message(message: Message, context: Context) -> Message:
    net, (batches, _) = received(message, context)
    loss = train(net, batches, context.run_config["local-epochs"], message.content["config"]["learning-rate"])
    metrics = MetricRecord({"num-examples": len(batches.dataset), "loss": loss})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate_message(message: Message, context: Context) -> Message:
    net, (_, batches) = received(message, context)
    loss, accuracy = test(net, batches)
    metrics = MetricRecord({"num-examples": len(batches.dataset), "loss": loss, "accuracy": accuracy})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
