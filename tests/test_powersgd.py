"""Low rank (PowerSGD, Vogels et al. 2019) over a real link, against the paper's algorithm in NumPy."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg

RANK = 2
SHAPES = {"conv": (6, 4, 3, 3), "dense": (50, 40), "bias": (40,)}


class Random:
    """Changes the model by numbers that are drawn from the round, and by a part that is of low rank in all rounds."""

    def model(self) -> dict[str, Any]:
        return {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}

    def train(self, model: Any, data: Any, config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        for name, change in changes(int(config["round"])).items():
            model[name] += change
        return 1, {}


def changes(number: int) -> dict[str, Any]:
    """Return the changes of a round."""
    random, steady = np.random.default_rng(number), np.random.default_rng(99)
    made = {}
    for name, shape in SHAPES.items():
        made[name] = random.normal(0, 0.1, shape).astype(np.float32)
        rows, columns = shape[0], int(np.prod(shape[1:]))
        made[name] += np.outer(steady.normal(size=rows), steady.normal(size=columns)).reshape(shape).astype(np.float32)
    return made


def splitmix(state: int) -> tuple[int, int]:
    """Return the next state of SplitMix64, and the number that it gives."""
    mask = (1 << 64) - 1
    state = (state + 0x9E3779B97F4A7C15) & mask
    z = state
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return state, z ^ (z >> 31)


def first_q(tensor: int, columns: int) -> Any:
    """Return the Q with which a sender of seed 0 begins."""
    state = 0
    for seed in (0, tensor):
        _, state = splitmix(state ^ seed)
    values = []
    for _ in range(RANK * columns):
        state, number = splitmix(state)
        values.append(2 * (number >> 11) / (1 << 53) - 1)
    return np.array(values).reshape(RANK, columns).T


class PowerSgd:
    """The paper's algorithms 1 and 2 for one worker."""

    def __init__(self, tensors: list[str]) -> None:
        self.q = {
            name: first_q(number, int(np.prod(SHAPES[name][1:])))
            for number, name in enumerate(tensors)
            if len(SHAPES[name]) > 1
        }
        self.error = {name: np.zeros(shape) for name, shape in SHAPES.items()}

    def step(self, update: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the server gets of an update."""
        sent = {}
        for name, change in update.items():
            delta = self.error[name] + change
            if name not in self.q:
                sent[name] = delta
                self.error[name] = np.zeros_like(delta)
                continue
            matrix = delta.reshape(len(delta), -1)
            p, _ = np.linalg.qr(matrix @ self.q[name])  # the product does not depend on the signs of columns
            self.q[name] = matrix.T @ p
            sent[name] = (p @ self.q[name].T).reshape(delta.shape)
            self.error[name] = delta - sent[name]
        return sent


def trained(rounds: int, folder: Path, *, resume: bool = False, record: str = "record") -> tuple[Any, list[str], Any]:
    """Return the model after so many rounds, the order of its tensors, and the last round."""
    with thalweg.Server(
        Random(),
        clients=1,
        compression=f"powersgd:{RANK}",
        record=None if resume else folder / record,
        resume=next((folder / record).iterdir()) if resume else None,
    ) as server:
        client = thalweg.Client(
            Random(),
            server.address,
            name="one",
            data=(),
            compression=f"powersgd:{RANK}",
            residual=folder / f"{record}.residual",
        )
        thread = threading.Thread(target=client.run, daemon=True)
        thread.start()
        for done in thalweg.fedavg(server, rounds):
            last = done
        model = {name: value.copy() for name, value in server.model.items()}
        order = [name for name, *_ in server.arena.core.layout.tensors]
    thread.join()
    return model, order, last


@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_the_server_gets_what_the_papers_algorithm_gives(tmp_path: Path, rounds: int) -> None:
    model, order, last = trained(rounds, tmp_path)
    reference, wanted = PowerSgd(order), {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for number in range(1, rounds + 1):
        for name, change in reference.step(changes(number)).items():
            wanted[name] += change
    for name, value in wanted.items():
        np.testing.assert_allclose(model[name], value, atol=2e-3 * np.abs(value).max())
    up = [way for way in last.outcome["transfers"] if way["direction"] == "up"]
    factors = RANK * (6 + 36 + 50 + 40) + 40
    assert up[0]["wire_bytes"] < 4 * factors + 700


def test_a_client_that_starts_anew_goes_on_with_its_factors(tmp_path: Path) -> None:
    whole, *_ = trained(7, tmp_path, record="whole")
    trained(3, tmp_path, record="part")
    part, *_ = trained(4, tmp_path, resume=True, record="part")
    for name, value in whole.items():
        np.testing.assert_array_equal(part[name], value)
    with pytest.raises(thalweg.CoreError, match="delete it to begin without"):
        cut(tmp_path / "part.residual")


def cut(file: Path) -> None:
    """Run a client whose file lacks a factor."""
    file.write_bytes(file.read_bytes()[:-4])
    with thalweg.Server(Random(), clients=1, compression=f"powersgd:{RANK}") as server:
        client = thalweg.Client(
            Random(), server.address, name="one", data=(), compression=f"powersgd:{RANK}", residual=file
        )
        thread = threading.Thread(target=lambda: list(_tried(server)), daemon=True)
        thread.start()
        client.run()


def _tried(server: thalweg.Server) -> Any:
    try:
        yield from thalweg.fedavg(server, 1)
    except thalweg.CoreError:
        return
