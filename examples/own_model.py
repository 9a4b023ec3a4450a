"""Federated averaging of a model of one's own: y = 3x - 1, known to nobody, learned from three clients' data."""

import threading

import torch

import thalweg


class Line:
    def model(self):
        return torch.nn.Linear(1, 1)

    def train(self, model, data, config):
        x, y = data
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        for _ in range(20):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        return len(x), {}

    def evaluate(self, model, data):
        with torch.no_grad():
            return {"loss": float(torch.nn.functional.mse_loss(model(data[0]), data[1]))}


def points(start, end, count):
    x = torch.linspace(start, end, count).reshape(-1, 1)
    return x, 3 * x - 1


with thalweg.Server(Line(), clients=3) as server:
    parts = [points(-1, 0, 10), points(-0.5, 0.5, 20), points(0, 1, 30)]
    clients = [thalweg.Client(Line(), server.address, name=f"c{i}", data=part) for i, part in enumerate(parts)]
    for client in clients:
        threading.Thread(target=client.run).start()
    for done in thalweg.fedavg(server, rounds=10, data=points(-1, 1, 50)):
        print(f"round {done.number}: loss {done.metrics['loss']:.4f} from {', '.join(done.participants)}")
