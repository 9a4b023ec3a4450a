"""Decentralized learning of a model of one's own: y = 3x - 1, learned by three nodes on a ring, without a server."""

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


def learn(node, lines):
    with node:
        for step in thalweg.dpsgd(node, rounds=10, data=points(-1, 1, 50)):
            loss = step.metrics["loss"]
            lines.append(f"{node.name}, iteration {step.number}: loss {loss:.4f}, received from {step.received}")


parts = {"anna": points(-1, 0, 10), "berta": points(-0.5, 0.5, 20), "clara": points(0, 1, 30)}
nodes = [thalweg.Node(Line(), name=name, data=part) for name, part in parts.items()]
for node in nodes:
    node.meet({other.name: other.address for other in nodes if other is not node})
said = {node.name: [] for node in nodes}
threads = [threading.Thread(target=learn, args=(node, said[node.name])) for node in nodes]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for lines in said.values():
    print(lines[0], lines[-1], sep="\n")
