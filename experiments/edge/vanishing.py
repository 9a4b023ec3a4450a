"""Measures whether dropout costs accuracy: in each round 95 of 100 clients vanish, and the mean has the other five.

The clients train in thalweg's own rounds, or are nodes of a Flower app that runs by ``thalweg flower``. For comparison
the same clients train without dropout, with as many updates: the server draws five of 100 in each round. The last arm
computes the survivors' rounds without thalweg. The model is that of the sweeps with fewer units
(``app/edge_app/learning.py``); each client has 15 images. A client vanishes when its process kills itself in training;
all that have vanished are started again before the next round. There is no emulated network, because accuracy does not
depend on time.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Final

import numpy as np

import thalweg
from experiments import measured as origins
from experiments.edge.bench import APP, BIN, PORT
from thalweg import cli, machine

CLIENTS: Final = 100
SURVIVORS: Final = 5
ROUNDS: Final = 20
# Units of the hidden layer, and the learning rate. With the sweeps' rate, means of five clients do not settle.
HIDDEN: Final = 512
RATE: Final = 10.0
NAMES: Final = [f"client-{number}" for number in range(1, CLIENTS + 1)]
VANISH, FLOWER, DRAWN, PLAIN = ARMS = (
    "95 vanish",
    "95 vanish, Flower app",
    "5 drawn",
    "95 vanish, without thalweg",
)
# Seconds that a lost client may take to come back. Those that have vanished start again only after the round.
GRACE: Final = 0.5
# Seconds in which all clients must have joined.
JOIN: Final = 300.0
# Seconds between two looks at the rounds of a Flower app.
POLL: Final = 0.1


def survivors(seed: int, number: int) -> set[str]:
    """Return the clients that do not vanish in a round."""
    return {NAMES[index] for index in learning().survivors(seed, number, CLIENTS, SURVIVORS)}


@cache
def learning() -> ModuleType:
    """Return the sweeps' model and training, with this file's size and learning rate."""
    os.environ.update(EDGE_HIDDEN=str(HIDDEN), EDGE_RATE=str(RATE))
    sys.path.insert(0, str(APP))
    return importlib.import_module("edge_app.learning")


class Vanishing:
    """The app of the sweeps. If ``arm`` says so, a client that does not survive the round kills its process."""

    def __init__(self, arm: str, seed: int, name: str = "") -> None:
        """Take an arm, the seed of the draws, and the client's name; none for the server."""
        self.arm, self.seed, self.name = arm, seed, name

    def model(self) -> dict[str, Any]:
        """Return the first model, which is the same for each party."""
        return dict(learning().new_model())

    def test_data(self) -> Any:
        """Return the test images."""
        return learning().test_part()

    def train_data(self) -> Any:
        """Return the client's images."""
        return learning().part(NAMES.index(self.name), CLIENTS)

    def train(self, model: dict[str, Any], data: Any, config: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
        """Train in place, or vanish."""
        if self.arm == VANISH and self.name not in survivors(self.seed, config["round"]):
            os.kill(os.getpid(), signal.SIGKILL)
        return learning().train(model, data), {}

    def evaluate(self, model: dict[str, Any], data: Any) -> dict[str, float]:
        """Return the accuracy."""
        return {"accuracy": learning().accuracy(model, data)}


def serve_forks(url: str, arm: str, seed: int) -> None:
    """Fork a client for each name on standard input. This process has one thread, so a fork copies all of it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets clients that have ended
    learning().digits()  # imports what reads the images once, and not in each client
    if arm == FLOWER:
        importlib.import_module("thalweg.flower.run")
        importlib.import_module("edge_app.client_app")
    if threading.active_count() > 1:
        raise RuntimeError("a fork would lack this process's other threads")
    for line in sys.stdin:
        if os.fork() == 0:
            name = line.strip()
            if arm == FLOWER:
                serve_node(url, name)
            else:
                thalweg.Client(Vanishing(arm, seed, name), url, name=name, timeout=JOIN).run()
            os._exit(0)


def serve_node(url: str, name: str) -> None:
    """Be a node of the Flower app, as ``thalweg flower client`` is."""
    place = f"partition-id={NAMES.index(name)} num-partitions={CLIENTS}"
    sys.argv = ["thalweg", "flower", "client", str(APP), url, "--name", name, "--node-config", place]
    sys.argv += ["--timeout", str(JOIN)]
    cli.main()


@contextmanager
def crowd(url: str, arm: str, seed: int) -> Iterator[IO[str]]:
    """Yield a stream: each name that is written to it starts a client. Clients that are left end with the block."""
    code = f"from experiments.edge.vanishing import serve_forks; serve_forks({url!r}, {arm!r}, {seed})"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        if process.stdin is None:
            raise RuntimeError("a pipe was asked for")
        try:
            yield process.stdin
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def over_thalweg(arm: str, seed: int, rounds: int) -> tuple[list[float], int]:
    """Train one arm; return the accuracies by round, and the number of updates in the means."""
    choose = SURVIVORS if arm == DRAWN else None
    server = thalweg.Server(Vanishing(arm, seed), clients=CLIENTS, choose=choose, seed=seed, enough=1, grace=GRACE)
    accuracies, updates = [], 0
    with server, crowd(server.address, arm, seed) as start:
        missing: Collection[str] = NAMES
        for _ in range(rounds):
            start.writelines(f"{name}\n" for name in missing)
            start.flush()
            if server.wait(CLIENTS, JOIN) < CLIENTS:
                raise RuntimeError(f"not all clients joined: {server.absent()}")
            done = server.advance()
            accuracies.append(round(float(done.metrics["accuracy"]), 4))
            updates += len(done.participants)
            print(f"{arm}, seed {seed}, round {done.number}: {accuracies[-1]}", flush=True)
            missing = sorted(done.absent) if arm == VANISH else ()
    return accuracies, updates


def over_flower(seed: int, rounds: int) -> tuple[list[float], int]:
    """Return what ``over_thalweg`` returns, of a Flower app with Flower's FedAvg, by ``thalweg flower server``."""
    learning()  # sets the variables for the server too
    url = f"tcp://127.0.0.1:{PORT}"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        output, result = folder / "rounds.jsonl", folder / "result.json"
        config = f'num-server-rounds={rounds} clients={CLIENTS} least={CLIENTS} output="{output}"'
        # Without `least-trained`, FedAvg asks as many nodes as are there when a round begins: the five that stayed.
        config += f" least-trained={CLIENTS} survivors={SURVIVORS} seed={seed}"
        command = [str(BIN / "thalweg"), "flower", "server", str(APP), "--listen", url, "--run-config", config]
        command += ["--clients", str(CLIENTS), "--grace", str(GRACE), "--record", str(folder), "--json"]
        file = stack.enter_context(result.open("w"))
        server = stack.enter_context(subprocess.Popen(command, stdout=file))
        start = stack.enter_context(crowd(url, FLOWER, seed))
        missing: Collection[str] = NAMES
        for number in range(rounds + 1):  # round 0 is the accuracy of the first model
            start.writelines(f"{name}\n" for name in missing)
            start.flush()
            while len(lines := _lines(output)) <= number:
                if server.poll() is not None:
                    raise RuntimeError(f"the server ended in round {number}")
                time.sleep(POLL)
            print(f"{FLOWER}, seed {seed}, round {number}: {lines[number]['accuracy']:.4f}", flush=True)
            missing = sorted(set(NAMES) - survivors(seed, number)) if 0 < number < rounds else ()
        server.wait()
        done = json.loads(result.read_text())
    accuracies = [round(float(line["accuracy"]), 4) for line in lines[1:]]
    return accuracies, sum(row["replies"] for row in done["rounds"])


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def plain(seed: int, rounds: int) -> tuple[list[float], int]:
    """Return what ``over_thalweg`` returns of the first arm, computed in this process without thalweg."""
    server = Vanishing(PLAIN, seed)
    model, test, accuracies = server.model(), server.test_data(), []
    for number in range(1, rounds + 1):
        samples, models = [], []
        for name in sorted(survivors(seed, number)):
            client, own = Vanishing(PLAIN, seed, name), {key: values.copy() for key, values in model.items()}
            samples.append(client.train(own, client.train_data(), {"round": number})[0])
            models.append(own)
        for key in model:
            mean = np.average([own[key].astype(np.float64) for own in models], axis=0, weights=samples)
            model[key] = mean.astype(np.float32)
        accuracies.append(round(server.evaluate(model, test)["accuracy"], 4))
    return accuracies, rounds * SURVIVORS


def run(arm: str, seed: int, rounds: int) -> dict[str, Any]:
    """Train one arm; return its row."""
    began, load = time.time(), os.getloadavg()[0]
    if arm == PLAIN:
        accuracies, updates = plain(seed, rounds)
    elif arm == FLOWER:
        accuracies, updates = over_flower(seed, rounds)
    else:
        accuracies, updates = over_thalweg(arm, seed, rounds)
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


def main() -> None:
    """Measure what FILE lacks: ``python -m experiments.edge.vanishing FILE SEEDS [ROUNDS [ARMS]]``.

    ``ARMS`` has a ``;`` between arms.
    """
    file, seeds, *more = sys.argv[1:]
    _measure(Path(file), int(seeds), int(more[0]) if more else ROUNDS, more[1].split(";") if more[1:] else ARMS)


def _measure(file: Path, seeds: int, rounds: int, arms: Sequence[str]) -> None:
    rows = json.loads(file.read_text()) if file.exists() else []
    for seed in range(seeds):
        for arm in arms:
            if any((row["arm"], row["seed"]) == (arm, seed) for row in rows):
                continue
            row = run(arm, seed, rounds)
            rows.append(row)
            file.write_text(json.dumps(rows, indent=1) + "\n")
            print(f"{arm}, seed {seed}: {row['accuracy'][-1]} after {row['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
