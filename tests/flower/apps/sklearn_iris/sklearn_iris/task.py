"""The partitions of the iris data, and a logistic regression that continues from given weights."""

from __future__ import annotations

import numpy as np
from flwr_datasets import FederatedDataset
from flwr_datasets.partitioner import IidPartitioner
from sklearn.linear_model import LogisticRegression

DATASET = "hitorilabs/iris"
FEATURES = ["petal_length", "petal_width", "sepal_length", "sepal_width"]
CLASSES = 3


def load(partition: int, partitions: int):
    """Return features and species for training, and for testing: the last fifth of the client's partition."""
    federated = FederatedDataset(dataset=DATASET, partitioners={"train": IidPartitioner(partitions)})
    table = federated.load_partition(partition).with_format("pandas")[:]
    features, species = table[FEATURES].to_numpy(), table["species"].to_numpy()
    cut = len(table) * 4 // 5
    return features[:cut], species[:cut], features[cut:], species[cut:]


def model(steps: int) -> LogisticRegression:
    """Return a model with weights 0. ``fit`` continues from its weights for this many steps."""
    made = LogisticRegression(max_iter=steps, warm_start=True)
    made.classes_ = np.arange(CLASSES)
    made.coef_ = np.zeros((CLASSES, len(FEATURES)))
    made.intercept_ = np.zeros(CLASSES)
    return made
