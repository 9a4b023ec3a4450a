"""Measures what DiLoCo costs in loss: four peers beside data-parallel training at equal steps, without a network.

python -m benches.diloco.learning data-parallel|diloco OUT [--steps N] [--every H] [--fragments P] [--overlap O] ...

Data-parallel training is one model whose batch has the batches of all peers, which is the same as averaging gradients
in each step. Both ways see the same batches. DiLoCo's peers are models in this process. Their fragments and outer steps
are those of ``thalweg.diloco``. The mean is that of a peer without a server: of its own exact values, and of the
others' values as ``--compress`` rounds them. So the result follows from the seed, not from the speed of this machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

from benches.diloco.model import Batches, Windows, loss_of, rate, small_gpt
from thalweg.algorithms.diloco import Fragments, OuterSteps
from thalweg.algorithms.server_step import Values
from thalweg.algorithms.torch_rule import MakeOptimizer, TorchRule
from thalweg.data import load_any
from thalweg.data.text import Text
from thalweg.job.diloco.exchanges import FRAGMENT, arena_for
from thalweg.peers import KEEP
from thalweg.tensors.binding import bind

# Number of peers, samples in the batch of one peer, and held-out windows of the text.
PEERS, BATCH, TESTED = 4, 8, 400
# Steps between two evaluations.
EVALUATED_EVERY = 50


class Trained:
    """A model, its AdamW, and the fragments that it exchanges."""

    def __init__(self, windows: Windows, peer: int, batch: int, fragments: int, outer: MakeOptimizer) -> None:
        self.bound = bind(small_gpt())
        self.model: torch.nn.Module = self.bound.model
        self.inner = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.99))
        self.batches = [Batches(windows, one, BATCH) for one in range(peer, peer + batch // BATCH)]
        cut = Fragments(self.bound.arena, self.bound.trained, fragments)
        self.steps = OuterSteps(cut, lambda values: TorchRule(values, outer))

    def step(self, learning_rate: float) -> float:
        for group in self.inner.param_groups:
            group["lr"] = learning_rate
        loss = loss_of(self.model, torch.cat([next(one) for one in self.batches]))
        self.inner.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.inner.step()
        return loss.item()


def mean_model(peers: list[Trained], tests: torch.Tensor) -> float:
    """Return the loss of the mean of the peers' models, which is the result of a job."""
    mean = small_gpt()
    with torch.no_grad():
        for values, *others in zip(mean.parameters(), *(one.model.parameters() for one in peers), strict=True):
            values.copy_(torch.stack(list(others)).mean(dim=0))
        return loss_of(mean, tests).item()


def exchanged(peers: list[Trained], fragment: int, compress: str | None) -> list[Values]:
    """Return for each peer the mean of a fragment: of its own values, and of what the others send."""
    room = arena_for(peers[0].steps.fragments, 1)
    buffer = room[FRAGMENT]
    own, sent = [], []
    for peer in peers:
        peer.steps.fill(fragment, buffer)
        own.append(buffer.copy())
        if compress is not None:
            room.core.compress(compress)
        sent.append(buffer.copy())
    total = np.sum(sent, axis=0)
    return [(total - theirs + exact) / len(peers) for theirs, exact in zip(sent, own, strict=True)]


def take_outer_steps(peers: list[Trained], fragment: int, means: list[Values], *, keep: float) -> None:
    """Let each peer take the outer step with the result of an exchange."""
    for peer, mean_sent in zip(peers, means, strict=True):
        mean = peer.steps.mean_of(fragment, mean_sent)
        if mean is not None:
            peer.steps.step(fragment, mean, keep)


class Training:
    """The peers, and the exchange that is under way between them."""

    def __init__(self, chosen: argparse.Namespace, windows: Windows) -> None:
        self.chosen, self._exchanges = chosen, chosen.way == "diloco"
        # The step at which the running exchange began, its fragment, and each peer's mean.
        self._pending: tuple[int, int, list[Values]] | None = None
        self._number = 0
        parts = chosen.fragments if self._exchanges else 1
        batch, count = (BATCH, PEERS) if self._exchanges else (PEERS * BATCH, 1)
        self.peers = [Trained(windows, one, batch, parts, self.outer) for one in range(count)]

    def outer(self, tensors: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        momentum = self.chosen.momentum
        return torch.optim.SGD(tensors, lr=self.chosen.rate, momentum=momentum, nesterov=momentum > 0)

    def step(self, step: int) -> list[float]:
        """Take a step at each peer, and exchange values if that is due; return the peers' training losses."""
        learning_rate = rate(step - 1, self.chosen.steps, self.chosen.inner)
        losses = [peer.step(learning_rate) for peer in self.peers]
        if self._exchanges:
            self._exchange(step)
        return losses

    def _exchange(self, step: int) -> None:
        chosen = self.chosen
        if self._pending is not None and step - self._pending[0] >= chosen.overlap:
            take_outer_steps(self.peers, self._pending[1], self._pending[2], keep=chosen.keep)
            self._pending = None
        if step % (chosen.every // chosen.fragments) == 0:
            fragment, self._number = self._number % chosen.fragments, self._number + 1
            means = exchanged(self.peers, fragment, chosen.compress)
            if chosen.overlap:
                self._pending = (step, fragment, means)
            else:
                take_outer_steps(self.peers, fragment, means, keep=0.0)


def main() -> int:
    """Train in one way. Write the loss every ``EVALUATED_EVERY`` steps."""
    chosen = arguments()
    torch.set_num_threads(1)
    text, tests = load_any("english", root=None)
    if not isinstance(text, Text) or not isinstance(tests, Text):
        raise TypeError("the data is not text")
    held_out = torch.from_numpy(np.asarray(tests.tokens[:TESTED], np.int64))
    training = Training(chosen, np.asarray(text.tokens, np.uint8))
    entries: list[dict[str, float]] = []
    began = time.perf_counter()
    for step in range(1, chosen.steps + 1):
        losses = training.step(step)
        if step % EVALUATED_EVERY == 0 or step == chosen.steps:
            loss = mean_model(training.peers, held_out)
            entries.append({"step": step, "train": sum(losses) / len(losses), "loss": loss})
            sys.stdout.write(f"{json.dumps(entries[-1])} {time.perf_counter() - began:.0f} s\n")
            sys.stdout.flush()
            settings = {"peers": PEERS, "batch": BATCH, **{key: str(value) for key, value in vars(chosen).items()}}
            chosen.out.write_text(json.dumps({"settings": settings, "entries": entries}, indent=1) + "\n")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=["data-parallel", "diloco"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--fragments", type=int, default=4)
    parser.add_argument("--overlap", type=int, default=5)
    parser.add_argument("--rate", type=float, default=0.7, help="the outer learning rate")
    parser.add_argument("--momentum", type=float, default=0.9, help="the outer momentum, Nesterov's")
    parser.add_argument("--inner", type=float, default=2e-3, help="the highest inner learning rate")
    parser.add_argument("--keep", type=float, default=KEEP, help="weight of values trained during an exchange")
    parser.add_argument("--compress", choices=["f16", "int8"], help="the format in which values are sent")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
