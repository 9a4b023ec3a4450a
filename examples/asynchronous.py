"""A hundred clients of very different speed, with and without waiting for the slowest: how long until 90 % accuracy.

Each client has a part of the handwritten digits that scikit-learn ships (``thalweg[data]``), and trains a softmax
regression. Its speed is modelled: after its step it sleeps as long as a device of its speed would compute. Everything
else is real: links over TCP, rounds and tasks.

    python examples/asynchronous.py [CLIENTS] [SLOWEST_SECONDS]
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits

import thalweg

CLIENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
SLOWEST = float(sys.argv[2]) if len(sys.argv) > 2 else 8.0
GOAL = 0.9


def digits():
    """Return images of 64 values and labels: 1,500 to train on and 297 to test."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    return (images[order] / 16.0).astype(np.float32), labels[order]


IMAGES, LABELS = digits()
TEST = IMAGES[1500:], LABELS[1500:]
# Seconds that a client computes in a round: log-normal, the slowest about a hundred times slower than the fastest.
SECONDS = np.exp(np.random.default_rng(1).normal(0.0, 1.0, CLIENTS))
SECONDS *= SLOWEST / SECONDS.max()


class Softmax:
    """Softmax regression; a client takes ten steps of gradient descent in a round."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def model(self):
        return {"w": np.zeros((64, 10), np.float32), "b": np.zeros(10, np.float32)}

    def train(self, model, data, config):
        images, labels = data
        for _ in range(10):
            error = self.shares(model, images) - np.eye(10, dtype=np.float32)[labels]
            model["w"] -= 0.5 * images.T @ error / len(images)
            model["b"] -= 0.5 * error.mean(axis=0)
        time.sleep(self.seconds)
        return len(images), {}

    def evaluate(self, model, data):
        images, labels = data
        return {"accuracy": float((self.shares(model, images).argmax(axis=1) == labels).mean())}

    @staticmethod
    def shares(model, images):
        scores = images @ model["w"] + model["b"]
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return scores / scores.sum(axis=1, keepdims=True)


def parts() -> Iterator[tuple[str, Softmax, tuple]]:
    """Yield name, app and data of each client."""
    for number, (images, labels) in enumerate(
        zip(np.array_split(IMAGES[:1500], CLIENTS), np.array_split(LABELS[:1500], CLIENTS), strict=True)
    ):
        yield f"client-{number}", Softmax(SECONDS[number]), (images, labels)


def synchronous() -> tuple[float, int]:
    """Run rounds that wait for all clients; return the seconds until the goal and the number of updates."""
    with thalweg.Server(Softmax(), clients=CLIENTS) as server:
        for name, app, data in parts():
            client = thalweg.Client(app, server.address, name=name, data=data)
            threading.Thread(target=client.run, daemon=True).start()
        server.wait()
        began = time.monotonic()
        for done in thalweg.rounds(server, 200, data=TEST):
            if done.metrics["accuracy"] >= GOAL:
                return time.monotonic() - began, CLIENTS * done.number
    raise SystemExit("200 rounds did not reach the goal")


def asynchronous() -> tuple[float, int]:
    """Take a step after every 20 updates; return the seconds until the goal and the number of updates."""
    with thalweg.TaskServer() as server:
        for name, app, data in parts():
            member = thalweg.TaskClient(server.address, name=name)
            work = {"client": member, "app": app, "data": data}
            threading.Thread(target=thalweg.fedbuff_client, kwargs=work, daemon=True).start()
        server.wait(CLIENTS)
        updates = 0
        for version in thalweg.fedbuff(server, Softmax(), 10_000, buffer=20, data=TEST):
            updates += len(version.updates)
            if version.metrics["accuracy"] >= GOAL:
                return version.seconds, updates
    raise SystemExit("10,000 versions did not reach the goal")


if __name__ == "__main__":
    print(f"{CLIENTS} clients compute {SECONDS.min():.2f} to {SECONDS.max():.2f} s in a round")
    for name, run in (("fedbuff, 20 updates a step", asynchronous), ("rounds with all clients", synchronous)):
        seconds, updates = run()
        print(f"{name}: {100 * GOAL:.0f} % after {seconds:.1f} s and {updates} updates", flush=True)
