"""Measures whether dropout costs accuracy: in each round 95 of 100 clients vanish, and the mean has the other five.

Beside it the same clients train without dropout, with as many updates: the server draws five of 100 a round, or takes
all 100 in a twentieth of the rounds. LeNet learns handwritten digits; each client has 14 or 15 images. A client
vanishes when its process kills itself in training; all that have vanished are started again before the next round.
There is no emulated network, because accuracy does not depend on time.
"""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import thalweg
from experiments import measured as origins
from thalweg import machine
from thalweg.apps.known_app import KnownApp

CLIENTS: Final = 100
SURVIVORS: Final = 5
ROUNDS: Final = 40
# The round after which the learning rate is a tenth. So the last rounds differ little.
DECAY: Final = 30
NAMES: Final = [f"client-{number}" for number in range(1, CLIENTS + 1)]
# In the arm "all", the rounds are so few that the number of updates is the same.
ARMS: Final = ("95 vanish", "5 drawn", "all")
# Seconds that a lost client may take to come back. Those that have vanished start again only after the round.
GRACE: Final = 0.5
# Seconds in which all clients must have joined.
JOIN: Final = 300.0


def rounds_of(arm: str) -> int:
    """Return the number of rounds of an arm: each arm has the same number of updates."""
    return ROUNDS * SURVIVORS // CLIENTS if arm == "all" else ROUNDS


def survivors(seed: int, number: int) -> set[str]:
    """Return the clients that do not vanish in a round."""
    return set(random.Random(1000 * seed + number).sample(NAMES, SURVIVORS))


class Vanishing:
    """KnownApp's LeNet on digits. If ``arm`` says so, a client that does not survive the round kills its process."""

    def __init__(self, arm: str, seed: int, name: str = "") -> None:
        """Take an arm, the seed of the draws, and the client's name; none for the server."""
        self.arm, self.seed, self.name = arm, seed, name
        self.app = KnownApp(
            model="lenet",
            data="digits",
            partition="iid",
            clients=CLIENTS,
            client=NAMES.index(name) if name else None,
            seed=seed,
            data_root=None,
            batch=5,
            learning_rate=0.02,
            momentum=0.9,
            decay_round=DECAY,
            local_epochs=3,
            threads=1,
        )

    def model(self) -> Any:
        """Return the first model, which is the same for each party."""
        return self.app.model()

    def test_data(self) -> Any:
        """Return the test images."""
        return self.app.test_data()

    def train_data(self) -> None:
        """Return nothing: images are loaded only by a client that does not vanish."""

    def train(self, model: Any, data: None, config: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
        """Train in place, or vanish."""
        if self.arm == ARMS[0] and self.name not in survivors(self.seed, config["round"]):
            os.kill(os.getpid(), signal.SIGKILL)
        return self.app.train(model, self.app.train_data(), config)

    def evaluate(self, model: Any, data: Any) -> dict[str, float]:
        """Return accuracy and loss."""
        return self.app.evaluate(model, data)


def serve_forks(url: str, arm: str, seed: int) -> None:
    """Fork a client for each name on standard input. Nothing here starts a thread, so a fork is a whole process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets clients that have ended
    Vanishing(arm, seed).model()  # imports PyTorch once
    for line in sys.stdin:
        if os.fork() == 0:
            name = line.strip()
            thalweg.Client(Vanishing(arm, seed, name), url, name=name, timeout=JOIN).run()
            os._exit(0)


@contextmanager
def crowd(url: str, arm: str, seed: int) -> Iterator[IO[str]]:
    """Yield a stream: each name that is written to it starts a client. All clients end with the server."""
    code = f"from experiments.edge.vanishing import serve_forks; serve_forks({url!r}, {arm!r}, {seed})"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True) as process:
        if process.stdin is None:
            raise RuntimeError("a pipe was asked for")
        yield process.stdin


def run(arm: str, seed: int) -> dict[str, Any]:
    """Train one arm; return its row: accuracies by round, and how many updates there were."""
    began, load = time.time(), os.getloadavg()[0]
    choose = SURVIVORS if arm == ARMS[1] else None
    server = thalweg.Server(Vanishing(arm, seed), clients=CLIENTS, choose=choose, enough=1, grace=GRACE)
    accuracies, updates = [], 0
    with server, crowd(server.address, arm, seed) as start:
        missing: Collection[str] = NAMES
        for _ in range(rounds_of(arm)):
            start.writelines(f"{name}\n" for name in missing)
            start.flush()
            if server.wait(CLIENTS, JOIN) < CLIENTS:
                raise RuntimeError(f"not all clients joined: {server.absent()}")
            done = server.advance()
            accuracies.append(round(float(done.metrics["accuracy"]), 4))
            updates += len(done.participants)
            missing = sorted(done.absent) if arm == ARMS[0] else ()
    return {
        "arm": arm,
        "seed": seed,
        "updates": updates,
        "accuracy": accuracies,
        "seconds": round(time.time() - began),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "core": machine.build().commit,
        "commit": origins.checkout(),
    }


def plain(seed: int) -> list[float]:
    """Return the accuracies by round that the survivors' updates lead to, computed in this process without thalweg."""
    import torch

    server = Vanishing("plain", seed)
    model, test, accuracies = server.model(), server.test_data(), []
    for number in range(1, ROUNDS + 1):
        total = 0
        sums: dict[str, torch.Tensor] = {}
        for name in sorted(survivors(seed, number)):
            client, own = Vanishing("plain", seed, name), copy.deepcopy(model)
            samples, _ = client.train(own, None, {"round": number})
            total += samples
            for key, values in own.state_dict().items():
                weighted = samples * values.to(torch.float64)
                sums[key] = sums[key] + weighted if key in sums else weighted
        model.load_state_dict({key: (values / total).to(torch.float32) for key, values in sums.items()})
        accuracies.append(round(float(server.evaluate(model, test)["accuracy"]), 4))
    return accuracies


def main() -> None:
    """Measure the arms and seeds that FILE lacks: ``python -m experiments.edge.vanishing FILE SEEDS``."""
    file, seeds = Path(sys.argv[1]), int(sys.argv[2])
    rows = json.loads(file.read_text()) if file.exists() else []
    for seed in range(seeds):
        for arm in ARMS:
            if any((row["arm"], row["seed"]) == (arm, seed) for row in rows):
                continue
            row = run(arm, seed)
            rows.append(row)
            file.write_text(json.dumps(rows, indent=1) + "\n")
            print(
                f"{arm}, seed {seed}: {row['accuracy'][-1]}, {row['updates']} updates, {row['seconds']} s", flush=True
            )


if __name__ == "__main__":
    main()
