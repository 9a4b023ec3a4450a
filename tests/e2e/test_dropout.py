"""Rounds in which 95 % of the clients are killed: each round ends with those that are there."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

import thalweg

pytestmark = pytest.mark.e2e

CLIENTS = 60
SURVIVORS = 3
ROUNDS = 3
NAMES = [f"client-{number}" for number in range(1, CLIENTS + 1)]


def survivors(number: int) -> set[str]:
    """Return the clients that are not killed in a round."""
    return set(random.Random(number).sample(NAMES, SURVIVORS))


class Counting:
    """Adds its own number to the model. A client that does not survive the round kills its process in training."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def model(self) -> dict[str, np.ndarray]:
        return {"w": np.zeros(1000, np.float32)}

    def train(self, model: Any, data: Any, config: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
        if self.name not in survivors(config["round"]):
            os.kill(os.getpid(), signal.SIGKILL)
        model["w"] += NAMES.index(self.name)
        return 1, {}


def serve_forks(url: str) -> None:
    """Fork a client for each name on standard input. Nothing here starts a thread, so a fork is a whole process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets clients that have ended
    for line in sys.stdin:
        if os.fork() == 0:
            name = line.strip()
            thalweg.Client(Counting(name), url, name=name).run()
            os._exit(0)


@contextmanager
def crowd(url: str) -> Iterator[IO[str]]:
    """Yield a stream: each name that is written to it starts a client. All clients end with it."""
    code = f"from tests.e2e.test_dropout import serve_forks; serve_forks({url!r})"
    root = Path(__file__).parent.parent.parent
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=root
    )
    assert process.stdin is not None
    try:
        yield process.stdin
    finally:
        process.stdin.close()
        process.wait()


def test_rounds_end_with_those_that_are_there_and_nobody_restarts_the_server() -> None:
    expected = 0.0
    with thalweg.Server(Counting(), clients=CLIENTS, enough=1, grace=0.5) as server, crowd(server.address) as start:
        missing = set(NAMES)
        for number in range(1, ROUNDS + 1):
            start.writelines(f"{name}\n" for name in sorted(missing))
            start.flush()
            assert server.wait(CLIENTS, 300) == CLIENTS
            outcome = server.round()
            states = {part["client"]: part["state"] for part in outcome["participants"]}
            counted = {name for name, state in states.items() if state == "whole"}
            assert counted == survivors(number)
            assert all(states[name] == "lost" for name in set(NAMES) - counted)
            expected += sum(NAMES.index(name) for name in counted) / SURVIVORS
            np.testing.assert_allclose(server.model["w"], expected, rtol=1e-6)
            missing = set(NAMES) - counted
