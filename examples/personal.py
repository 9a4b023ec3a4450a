"""Personal layers: clients share a trunk, and each keeps a head of its own, which never travels.

thalweg run --app examples/personal.py:Personal --clients 3 --rounds 5

Each client's data is y = sin(3x) times a factor of its own, so one head cannot serve all.
"""

import torch
from torch.nn.functional import mse_loss


class Personal:
    tensors = "trunk.*"

    def model(self):
        trunk = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.Tanh())
        return torch.nn.ModuleDict({"trunk": trunk, "head": torch.nn.Linear(32, 1)})

    def client_data(self, name, index, clients, seed):
        x = torch.linspace(-1, 1, 40).reshape(-1, 1)
        return x, (index + 1) * torch.sin(3 * x)

    def train(self, model, data, config):
        x, y = data
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(50):
            optimizer.zero_grad()
            mse_loss(model["head"](model["trunk"](x)), y).backward()
            optimizer.step()
        return len(x), {}

    def evaluate(self, model, data):
        x, y = data
        with torch.no_grad():
            return {"loss": float(mse_loss(model["head"](model["trunk"](x)), y))}
