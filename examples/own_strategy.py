"""A strategy of one's own at the server: momentum on the mean of updates (FedAvgM, Hsu et al. 2019).

python examples/own_strategy.py
"""

import threading

import numpy as np

import thalweg

MOMENTUM, ROUNDS = 0.5, 20
TARGET = np.linspace(-1, 1, 10, dtype=np.float32)


class Quadratic:
    """Each client pulls the model a little towards its own point; their mean is TARGET."""

    def model(self):
        return {"w": np.zeros(10, np.float32)}

    def train(self, model, data, config):
        model["w"] += 0.2 * (data - model["w"])
        return 1, {}

    def evaluate(self, model, data):
        return {"loss": float(np.mean((model["w"] - data) ** 2))}


with thalweg.Server(Quadratic(), clients=2) as server:
    points = [TARGET - 1, TARGET + 1]
    for index, point in enumerate(points):
        client = thalweg.Client(Quadratic(), server.address, name=f"c{index}", data=point)
        threading.Thread(target=client.run).start()
    server.wait()
    velocity = np.zeros(10, np.float32)
    for number in range(1, ROUNDS + 1):
        before = server.model["w"].copy()
        server.round()  # afterwards the model is the mean of the updates
        velocity = MOMENTUM * velocity + (server.model["w"] - before)
        server.model["w"][:] = before + velocity
        loss = server.evaluate(TARGET)["loss"]
        print(f"round {number}: loss {loss:.5f}")
    if loss > 0.01:
        raise SystemExit("it has not learned")
