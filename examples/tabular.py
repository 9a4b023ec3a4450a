"""A table of patients, spread over hospitals: logistic regression in NumPy on scikit-learn's breast cancer data.

thalweg run --app examples/tabular.py:Hospitals --clients 4 --rounds 10
"""

import numpy as np
from sklearn.datasets import load_breast_cancer

HELD_OUT = 100


def table():
    """Return scaled features and labels, shuffled alike at each party."""
    features, labels = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    scaled = (features - features.mean(axis=0)) / features.std(axis=0)
    return scaled[order].astype(np.float32), labels[order].astype(np.float32)


class Hospitals:
    def model(self):
        return {"weights": np.zeros(30, np.float32), "bias": np.zeros(1, np.float32)}

    def client_data(self, name, index, clients, seed):
        features, labels = table()
        return features[HELD_OUT:][index::clients], labels[HELD_OUT:][index::clients]

    def train(self, model, data, config):
        features, labels = data
        for _ in range(10):
            wrong = likelihood(model, features) - labels
            model["weights"] -= 0.1 * features.T @ wrong / len(labels)
            model["bias"] -= 0.1 * wrong.mean()
        return len(labels), {"positive": float(labels.mean())}

    def test_data(self):
        features, labels = table()
        return features[:HELD_OUT], labels[:HELD_OUT]

    def evaluate(self, model, data):
        features, labels = data
        return {"accuracy": float(((likelihood(model, features) > 0.5) == labels).mean())}


def likelihood(model, features):
    return 1 / (1 + np.exp(-(features @ model["weights"] + model["bias"])))
