"""An app of one's own for `thalweg run`: it learns y = 3x - 1 from points of which each client has its own.

thalweg run --app examples/own_app.py:Line --clients 3 --rounds 10
"""

import torch
from torch.nn.functional import mse_loss


class Line:
    def __init__(self, learning_rate=0.3, steps=20):
        self.learning_rate, self.steps = learning_rate, steps

    def model(self):
        return torch.nn.Linear(1, 1)

    def client_data(self, name, index, clients, seed):
        start = -1 + 2 * index / clients
        return points(start, start + 2 / clients, 10 * (index + 1))

    def test_data(self):
        return points(-1, 1, 50)

    def train(self, model, data, config):
        x, y = data
        optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate)
        for _ in range(self.steps):
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
        return len(x), {}

    def evaluate(self, model, data):
        with torch.no_grad():
            return {"loss": float(mse_loss(model(data[0]), data[1]))}


def points(start, end, count):
    x = torch.linspace(start, end, count).reshape(-1, 1)
    return x, 3 * x - 1
