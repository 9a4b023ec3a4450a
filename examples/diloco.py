"""Trains a small GPT on English with DiLoCo: peers meet at a server once every 20 steps, and may come and go.

It needs the extra ``thalweg[lm]``. The text is what ships with Python. In three terminals:

    python examples/diloco.py server tcp://127.0.0.1:7070
    python examples/diloco.py peer tcp://127.0.0.1:7070 anna
    python examples/diloco.py peer tcp://127.0.0.1:7070 ben
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import thalweg
from thalweg import data, models

EVERY, ROUNDS, PEERS, BATCH = 20, 10, 2, 8


def windows(part: int):
    """Return windows of bytes as int64: of the training set (0) or of the test set (1)."""
    return torch.from_numpy(np.asarray(data.load_any("english", root=None)[part].tokens, np.int64))


def loss_of(model, tokens):
    return cross_entropy(model(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten())


class Job:
    """What the server knows: the first model, and how to evaluate one."""

    def model(self):
        return models.build("gpt2-mini", classes=10, seed=0)

    def evaluate(self, model, tokens):
        with torch.no_grad():
            return {"loss": loss_of(model.eval(), tokens).item()}


def outer(tensors):
    return torch.optim.SGD(tensors, lr=0.7, momentum=0.9, nesterov=True)


def serve(url: str) -> None:
    sent = 0
    with thalweg.Server(Job(), clients=PEERS, enough=1, listen=url) as server:
        print("waiting at", server.address, flush=True)
        for done in thalweg.rounds(server, ROUNDS, optimizer=outer, data=windows(1)[:200]):
            sent += done.outcome["bytes_up"] + done.outcome["bytes_down"]
            print(f"round {done.number}: loss {done.metrics['loss']:.3f}, {', '.join(done.participants)}", flush=True)
    print(
        f"{sent / 1e6:.1f} MB were sent; meeting at each step sends {EVERY} times as much: {EVERY * sent / 1e6:.0f} MB"
    )


def take_part(url: str, name: str) -> None:
    model = Job().model()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens, generator = windows(0), torch.Generator().manual_seed(sum(name.encode()))
    with thalweg.diloco(model, inner, url, every=EVERY, name=name) as peer:
        while not peer.over:
            chosen = torch.randint(len(tokens), (BATCH,), generator=generator)
            loss = loss_of(model.train(), tokens[chosen])
            inner.zero_grad()
            loss.backward()
            peer.metrics = {"loss": loss.item()}
            inner.step()


if __name__ == "__main__":
    if sys.argv[1:2] == ["server"]:
        serve(sys.argv[2])
    elif sys.argv[1:2] == ["peer"]:
        take_part(*sys.argv[2:4])
    else:
        raise SystemExit(__doc__)
