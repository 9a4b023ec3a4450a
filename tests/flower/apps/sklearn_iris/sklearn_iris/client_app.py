"""Trains the logistic regression on the client's own flowers."""

from __future__ import annotations

import warnings

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss

from sklearn_iris.task import load, model

app = ClientApp()


def received(message: Message, context: Context):
    found = model(context.run_config["local-epochs"])
    found.coef_, found.intercept_ = message.content["arrays"].to_numpy_ndarrays()
    return found, load(context.node_config["partition-id"], context.node_config["num-partitions"])


@app.train()
def train(message: Message, context: Context) -> Message:
    found, (features, species, _, _) = received(message, context)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a round has only a few steps, so it does not converge
        found.fit(features, species)
    metrics = MetricRecord({"num-examples": len(species), "accuracy": found.score(features, species)})
    content = RecordDict({"arrays": ArrayRecord([found.coef_, found.intercept_]), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    found, (_, _, features, species) = received(message, context)
    loss = log_loss(species, found.predict_proba(features), labels=found.classes_)
    metrics = MetricRecord(
        {"num-examples": len(species), "loss": float(loss), "accuracy": found.score(features, species)}
    )
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
