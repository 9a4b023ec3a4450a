"""A model of text in NumPy: which byte follows which, learned from Python's own help, of which each client has a part.

thalweg run --app examples/text.py:Bigrams --clients 3 --rounds 5
"""

import pydoc_data.topics

import numpy as np

SYMBOLS = 128


def text():
    return "".join(value for _, value in sorted(pydoc_data.topics.topics.items()))


def pairs(part):
    """Return each byte of a text, and the byte after it."""
    symbols = np.frombuffer(part.encode("ascii", "ignore"), np.uint8)
    return symbols[:-1], symbols[1:]


class Bigrams:
    def model(self):
        return {"logits": np.zeros((SYMBOLS, SYMBOLS), np.float32)}

    def client_data(self, name, index, clients, seed):
        whole = text()[:300_000]
        return pairs(whole[index * len(whole) // clients : (index + 1) * len(whole) // clients])

    def train(self, model, data, config):
        before, after = data
        counts = np.zeros((SYMBOLS, SYMBOLS))
        np.add.at(counts, (before, after), 1.0)
        rows = np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
        for _ in range(20):  # gradient descent on the cross-entropy of each row
            model["logits"] += 4.0 * (counts / rows - chances(model["logits"])).astype(np.float32)
        return len(before), {}

    def test_data(self):
        return pairs(text()[300_000:360_000])

    def evaluate(self, model, data):
        before, after = data
        likely = chances(model["logits"])
        found = likely[before].argmax(axis=1) == after
        return {"loss": float(-np.log(likely[before, after] + 1e-9).mean()), "accuracy": float(found.mean())}


def chances(logits):
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)
