"""Lying clients of a server: the mean of a round has only the updates that its outcome counts, with their weights."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import numpy as np
import pytest

from thalweg import _core
from thalweg.sections import SecuritySection
from thalweg.transports.links import local_trust

URL = "tcp://127.0.0.1:0"
# Seconds after which a hanging test fails.
LIMIT = 60.0
SEEDS = 40
TIMEOUT = 0.5
ROUNDS = 2
ELEMENTS = 576
DEEP = "[" * 10_000


@dataclass(frozen=True)
class Lie:
    """A client's action in each round: the value of its update, its weight and metrics, or how it leaves."""

    value: float
    weight: float
    metrics: str = "{}"
    does: Literal["submits", "leaves", "nothing"] = "submits"


class Client:
    """An admitted client in a thread. It ends when the server ends or refuses one of its messages."""

    def __init__(self, address: str, name: str, options: dict[str, Any], lie: Lie) -> None:
        self.lie = lie
        self.arena = _core.Arena(layout())
        self.client = _core.Client(address, name, json.dumps(options), self.arena)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with suppress(_core.CoreError):
            self.client.join()
            while (task := self.client.next()) is not None:
                self._work(task[0])
        with suppress(_core.CoreError):
            self.client.close("it has said what it has to say")

    def _work(self, number: int) -> None:
        if self.lie.does == "submits":
            np.asarray(self.arena).view(np.float32)[:] = self.lie.value
            self.client.submit(number, self.lie.weight, self.lie.metrics)
        elif self.lie.does == "leaves":
            self.client.close("it leaves")


def layout() -> _core.Layout:
    return _core.Layout([("w", "F32", [ELEMENTS])])


def population(random: Random) -> dict[str, Lie]:
    behaviour = {}
    for number in range(random.randint(1, 8)):
        value, weight = float(random.randint(-1000, 1000)), random.choice([0.5, 1.0, 7.0, 1000.0])
        behaviour[f"client-{number}"] = random.choice([
            Lie(value, weight),
            Lie(value, weight),
            Lie(value, 2.0**40),
            Lie(value, 0.0),
            Lie(value, -weight),
            Lie(value, 2.0**41),
            Lie(value, float("nan")),
            Lie(float("nan"), weight),
            Lie(float("inf"), weight),
            Lie(value, weight, DEEP),
            Lie(value, weight, '{"loss": NaN}'),
            Lie(value, weight, "9" * 5000),
            Lie(value, weight, "\x1b[2J"),
            Lie(value, weight, does="leaves"),
            Lie(value, weight, does="nothing"),
        ])  # fmt: skip
    return behaviour


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def played(server: _core.Server, number: int) -> tuple[list[dict[str, Any]], str]:
    """Run a round; return its participants. If it failed, return none, and the reason."""
    try:
        return json.loads(server.round(number, "{}", None))["participants"], ""
    except _core.CoreError as error:
        return [], str(error)


@pytest.mark.parametrize("precision", ["f32", "exact"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_mean_is_that_of_the_updates_that_count(stack: ExitStack, seed: int, precision: str) -> None:
    lies = population(Random(seed))
    arena = _core.Arena(layout())
    model = np.asarray(arena).view(np.float32)
    own, member = (
        {"token": trust.token, "transport": {"tls": trust.tls}}
        for trust in local_trust(SecuritySection(tls="off"), URL)
    )
    # The server waits until the deadline for a client that sends nothing. An update after the deadline must not count.
    deadline = TIMEOUT if any(lie.does == "nothing" for lie in lies.values()) else None
    job = {"expected": len(lies), "enough": 1, "precision": precision, "deadline": deadline}
    server = _core.Server(arena, URL, json.dumps({**own, **job}))
    clients = {name: Client(server.address, name, member, lie) for name, lie in lies.items()}
    for client in clients.values():
        stack.callback(client.thread.join, LIMIT)
    stack.callback(server.close, "the test is over")
    assert server.wait(len(lies), LIMIT) == len(lies)
    for number in range(1, ROUNDS + 1):
        before = model.copy()
        participants, why = played(server, number)
        if why:
            assert f"round {number}: 0 of {len(lies)} updates came" in why
            np.testing.assert_array_equal(model, before)
            break
        counted = {part["client"]: part for part in participants if part["state"] == "whole"}
        assert all(part["coverage"] == 0 for part in participants if part["client"] not in counted)
        assert all(part["samples"] == lies[name].weight for name, part in counted.items())
        assert all(np.isfinite(lies[name].value) for name in counted)
        assert counted
        values, weights = zip(*((lies[name].value, part["samples"]) for name, part in counted.items()), strict=True)
        np.testing.assert_allclose(model, np.full(ELEMENTS, np.average(values, weights=weights)), rtol=1e-5, atol=1e-4)
