"""Lying neighbours of a node: its model is the mix of exactly the neighbours' bytes that its report counts.

A hub with value 0 has up to seven neighbours. Each has weight 1/8, and the n-th has the value 8 * 2^n. So each element
of the mix is a whole number. Its bits tell which neighbours are in it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pytest

from thalweg import _core

# Turns a hang into a failure.
LIMIT: Final = 60.0
TIMEOUT: Final = 0.5
SEEDS: Final = 20
ROUNDS: Final = 2
ELEMENTS: Final = 20_000
CHUNK: Final = 8192
MOST: Final = 7
WEIGHT: Final = 1 / 8
HUB: Final = "m"
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Lie:
    """What a neighbour does in every iteration, and its own options.

    ``spoils``: the first element that is NaN, and whether all later elements are NaN too."""

    does: Literal["sends", "leaves", "sends and leaves", "nothing", "keeps its model", "runs ahead"] = "sends"
    spoils: tuple[int, bool] | None = None
    bad: float = float("nan")
    weight: float = WEIGHT
    chunk: int = CHUNK
    share: float = 1.0

    @property
    def is_honest(self) -> bool:
        return self == Lie()


def lies(random: Random) -> list[Lie]:
    at, every = random.randrange(ELEMENTS), random.choice([False, True])
    return [
        Lie(),
        Lie(),
        Lie(spoils=(0, True)),
        Lie(spoils=(at, every)),
        Lie(spoils=(at, every), bad=float("-inf")),
        Lie(weight=1.0),
        Lie(weight=1e-6),
        Lie(chunk=64),
        Lie(share=0.1),
        Lie(does="leaves"),
        Lie(does="sends and leaves"),
        Lie(does="nothing"),
        Lie(does="keeps its model"),
        Lie(does="runs ahead"),
    ]


def opened(stack: ExitStack, name: str, config: dict[str, Any]) -> tuple[_core.Node, Floats]:
    """Return a node and its model. The node is closed at the end of the test."""
    arena = _core.Arena(_core.Layout([("w", "F32", [ELEMENTS])]))
    node = _core.Node(arena, name, "tcp://127.0.0.1:0", json.dumps(config))
    stack.callback(node.close, "the test is over")
    return node, np.asarray(arena).view(np.float32)


class Neighbour:
    """A neighbour of the hub, in a thread. Unless it leaves, it stays until the test ends."""

    def __init__(self, stack: ExitStack, name: str, value: float, lie: Lie, config: dict[str, Any]) -> None:
        self.lie, self.value, self.weights = lie, value, json.dumps({HUB: lie.weight})
        self.node, self.model = opened(stack, name, {**config, "chunk": lie.chunk, "share": lie.share})
        self.reports: list[dict[str, Any]] = []
        self.hub_is_done = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        stack.callback(self.thread.join, LIMIT)

    def _run(self) -> None:
        number = 1000 if self.lie.does == "runs ahead" else 1
        for _ in range(ROUNDS):
            self.model[:] = self.value
            if self.lie.spoils is not None:
                first, every = self.lie.spoils
                self.model[first : None if every else first + 1] = self.lie.bad
            number, now = number + 1, number
            with suppress(_core.CoreError):  # the neighbour has left, or its model has values that are not finite
                number = self._work(now)

    def _work(self, number: int) -> int:
        match self.lie.does:
            case "leaves":
                self.node.close("it leaves")
            case "keeps its model":
                self._iterate(number, [])
            case "sends and leaves":
                self.node.begin(number, self.weights, None)
                self.node.ready(number)
                self.node.close("it leaves")
            case "sends" | "runs ahead":
                number = self._iterate(number, None)
        return number

    def _iterate(self, number: int, to: list[str] | None) -> int:
        """Run an iteration, unless the hub ends first; return the number of the next iteration."""
        self.node.begin(number, self.weights, None, to)
        number = self.node.ready(number)
        while (report := self.node.wait(number, TIMEOUT)) is None:
            if self.hub_is_done.is_set():
                return number + 1
        self.reports.append(json.loads(report))
        return int(self.reports[-1]["next"])


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def check(report: dict[str, Any], model: Floats, values: dict[str, float]) -> dict[str, Floats]:
    """Check that the mix has as many bytes of each neighbour as the report counts; return their positions."""
    mixed = model.astype(np.int64)
    np.testing.assert_array_equal(model, mixed, "each element is a sum of values of neighbours")
    where = {}
    for exchange in report["exchanges"]:
        name, counted = exchange["peer"], exchange["bytes"]
        bit = int(values[name] * WEIGHT)
        where[name] = mixed & bit != 0
        mixed = mixed & ~bit
        assert (exchange["weight"], exchange["expected"]) == (WEIGHT, 4 * ELEMENTS)
        assert int(where[name].sum()) * 4 == counted, name
        assert (exchange["state"] == "whole") == (name in report["whole"]) == (counted == exchange["expected"])
        assert (counted > 0) == (name in report["heard"]), name
    assert not mixed.any(), "nobody else is in the mix"
    share = sum(exchange["bytes"] for exchange in report["exchanges"]) / (4 * ELEMENTS)
    assert report["own_weight"] == pytest.approx(1 - share * WEIGHT)
    return where


@pytest.mark.parametrize("mixing", ["complement", "paper", "symmetric"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_model_is_the_mix_of_the_bytes_that_count(stack: ExitStack, seed: int, mixing: str) -> None:
    random = Random(seed)
    chosen = [random.choice(lies(random)) for _ in range(random.randint(1, MOST))]
    # All neighbours send, so no iteration ends by its deadline.
    waits = any(lie.does in ("nothing", "keeps its model", "runs ahead") for lie in chosen)
    # Of two neighbours the one with the smaller name dials.
    members = {f"{'a' if waits else random.choice('az')}-{at}": lie for at, lie in enumerate(chosen)}
    values = {name: 2.0**at / WEIGHT for at, name in enumerate(members)}
    config = {"wait": "deadline", "deadline": TIMEOUT if waits else LIMIT, "mixing": mixing, "chunk": CHUNK}
    hub, model = opened(stack, HUB, config)
    neighbours = {name: Neighbour(stack, name, values[name], lie, config) for name, lie in members.items()}
    weights = json.dumps(dict.fromkeys(members, WEIGHT))
    hub.meet(json.dumps({name: one.node.address for name, one in neighbours.items()}), 1, weights)
    for one in neighbours.values():
        stack.callback(one.hub_is_done.set)
        one.node.meet(json.dumps({HUB: hub.address}), 1, one.weights)
    for node, count in [(hub, len(members)), *((one.node, 1) for one in neighbours.values())]:
        assert node.gather(count, LIMIT) == count
    for one in neighbours.values():
        one.thread.start()
    number = 1
    for _ in range(ROUNDS):
        model[:] = 0
        hub.begin(number, weights, None)
        text = hub.wait(hub.ready(number), LIMIT)
        assert text is not None, "it waits in vain"
        report = json.loads(text)
        number = report["next"]
        where = check(report, model, values)
        for name, lie in members.items():
            if lie.spoils is not None:
                first, every = lie.spoils
                assert not where[name][first : None if every else first + 1].any(), "what is no number is in the mix"
            if lie.is_honest and not waits:
                assert where[name].all(), "an honest neighbour is missing"
    for one in neighbours.values():
        if waits:
            one.hub_is_done.set()
        one.thread.join(LIMIT)
        assert not one.thread.is_alive()
        assert waits or not one.lie.is_honest or all(report["whole"] == [HUB] for report in one.reports[:ROUNDS])
    assert {name for name, lie in members.items() if lie.is_honest} <= set(json.loads(hub.connected()))
    left = {event["peer"]: event["text"] for event in json.loads(hub.events()) if event["kind"] == "left"}
    assert set(left) == {name for name, lie in members.items() if "leaves" in lie.does}
    # The hub may be sending when a neighbour leaves. Then it may notice the broken link before the goodbye.
    assert all(text == "left: it leaves" or "the link broke" in text for text in left.values())
