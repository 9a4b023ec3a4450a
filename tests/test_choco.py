"""CHOCO-SGD: nodes that exchange rounded differences, compared with a reference that keeps every replica."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from thalweg import _core
from thalweg.algorithms import choco
from thalweg.apps.received_config import ReceivedConfig
from thalweg.errors import PlanError, RoundError
from thalweg.graphs import mixing, schedule
from thalweg.job.graph.iterations import iterate, iteration_weights_of
from thalweg.job.graph.peer import Peer
from thalweg.plan import Plan
from thalweg.plan.on_graphs import gamma_of, graph_line, schedule_of

NAMES = ["a", "b", "c", "d"]
VALUES = 700
TCP = "tcp://127.0.0.1:0"
LAYOUT = [("steps", "I64", [1]), ("w", "F32", [VALUES])]


# Training moves a node's model towards the node's target: a tenth of the way in each iteration, or all the way in the
# first.
Rate = Callable[[int], float]


def always(_: int) -> float:
    return 0.1


def at_first(iteration: int) -> float:
    return float(iteration == 1)


class Party:
    def __init__(self, arena: _core.Arena, target: Any, rate: Rate) -> None:
        self._values, self._target, self._rate = values_of(arena), target, rate

    def train(self, config: ReceivedConfig) -> tuple[int, dict[str, Any]]:
        self._values += np.float32(self._rate(config.round)) * (self._target - self._values)
        return 1, {}


def values_of(arena: _core.Arena) -> Any:
    return np.asarray(arena)[64 : 64 + 4 * VALUES].view(np.float32)


def rounded(values: Any, compression: str | None) -> Any:
    """Return these values as they arrive after compression."""
    arena = _core.Arena(_core.Layout(LAYOUT))
    values_of(arena)[:] = values
    if compression is not None:
        arena.compress(compression)
    return values_of(arena).copy()


def run(targets: Any, rounds: int, gamma: float, compression: str | None, *, rate: Rate, url: str = TCP) -> list[Any]:
    """Return the model of each node on a ring after ``rounds`` iterations."""
    plan = schedule("ring", len(NAMES), 0)
    options = json.dumps({"layers": {} if compression is None else {"compress": {"format": compression}}})
    arenas = [_core.Arena(_core.Layout(LAYOUT)) for _ in NAMES]
    nodes = [_core.Node(arena, name, url, options) for arena, name in zip(arenas, NAMES, strict=True)]
    failed: list[BaseException] = []

    def work(place: int) -> None:
        node, arena = nodes[place], arenas[place]
        peer = Peer(arena, Party(arena, targets[place], rate), dict, parameters=VALUES, seed=1)
        swap = choco.Replicas(arena, gamma, compression)
        weights = iteration_weights_of(plan, NAMES, NAMES[place], "metropolis")
        try:
            for _ in iterate(node, peer, weights, rounds, config=told, evaluates_after=lambda _: False, swap=swap):
                pass
        except BaseException as error:  # noqa: BLE001 - raised in the test's own thread
            failed.append(error)

    def told(number: int) -> ReceivedConfig:
        return ReceivedConfig({"round": number})

    for place, node in enumerate(nodes):
        around = plan.links.neighbours[place]
        node.meet(json.dumps({NAMES[other]: nodes[other].address for other in around}))
    for node in nodes:
        assert node.gather(2, 60.0) == 2
    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(NAMES))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for node in nodes:
        node.close("done")
    assert not failed
    return [values_of(arena).copy() for arena in arenas]


def reference(targets: Any, rounds: int, gamma: float, compression: str | None, *, rate: Rate) -> Any:
    """Compute the same with all replicas in one process. Values that are rounded are float32, all others float64."""
    weights = mixing.metropolis(schedule("ring", len(NAMES), 0).at(1))
    models, replicas = np.zeros_like(targets), np.zeros_like(targets)
    for iteration in range(1, rounds + 1):
        models += np.float32(rate(iteration)) * (targets - models)
        replicas += np.stack([rounded(row, compression) for row in models - replicas])
        models = (models + gamma * (weights @ replicas.astype(np.float64) - replicas)).astype(np.float32)
    return models


@pytest.mark.parametrize("compression", [None, "f16", "int8"])
def test_nodes_do_what_the_reference_does(compression: str | None) -> None:
    targets = np.random.default_rng(5).normal(size=(4, VALUES)).astype(np.float32)
    models = run(targets, 5, 0.5, compression, rate=always)
    expected = reference(targets, 5, 0.5, compression, rate=always)
    if compression is None:
        np.testing.assert_allclose(models, expected, atol=2e-6)
        return
    # If float32 and float64 fall on different sides of a tie, C rounds to another step. This is rare.
    apart = np.abs(np.array(models) - expected)
    assert np.median(apart) < 1e-6
    assert apart.max() < (1e-3 if compression == "f16" else 1e-2)


@pytest.mark.parametrize("url", [TCP, "udp://127.0.0.1:0"])
def test_models_agree_on_their_mean_to_more_digits_than_travel(url: str) -> None:
    targets = np.random.default_rng(6).normal(size=(4, VALUES)).astype(np.float32)
    gamma = choco.step_size(schedule("ring", 4, 0), "int8")
    models = run(targets, 200, gamma, "int8", rate=at_first, url=url)
    # For values of this size, int8 has steps of 2^-5.
    np.testing.assert_allclose(models, np.broadcast_to(targets.mean(axis=0), targets.shape), atol=3e-5)


def test_rounded_models_would_not_agree_so_well() -> None:
    targets = np.random.default_rng(6).normal(size=(4, VALUES)).astype(np.float32)
    weights = mixing.metropolis(schedule("ring", 4, 0).at(1))
    models = targets
    for _ in range(200):
        models = (weights @ np.stack([rounded(row, "int8") for row in models])).astype(np.float32)
    assert np.abs(models - targets.mean(axis=0)).max() > 1e-3


def test_a_difference_that_is_missing_ends_it() -> None:
    arena = _core.Arena(_core.Layout(LAYOUT))
    replicas = choco.Replicas(arena, 1.0, None)
    replicas.before()
    with pytest.raises(RoundError, match="without the update of c"):
        replicas.after(["c"], fresh=False)
    with pytest.raises(RoundError, match="without the update of c"):
        replicas.before()
    replicas = choco.Replicas(arena, 1.0, None)
    with pytest.raises(RoundError, match="the iterations before"):
        replicas.after([], fresh=True)


def plan(text: str = "", **said: Any) -> Plan:
    return Plan.loads(f"[job]\ngraph = 'ring'\nclients = 16\n[algorithm]\nname = 'choco'\n{text}").merge(said)


def test_gamma_follows_from_the_gap_and_the_rounding() -> None:
    graph = schedule_of(plan())
    int8 = "[layers.compress]\nformat = 'int8'"
    exact, half, byte = (gamma_of(plan(text), graph) for text in ("", "[layers.compress]", int8))
    assert exact == half == 1.0
    assert byte is not None
    assert 0.5 < byte < 1.0
    assert gamma_of(plan("gamma = 0.25"), graph) == 0.25
    assert f"gamma {byte:.3g}" in graph_line(plan(int8), graph)
    assert gamma_of(Plan.of({"job": {"graph": "ring"}}), graph) is None


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"job.wait": "deadline"}, "a difference that is lost stays missing for ever"),
        ({"aggregation.weights": "renormalise"}, "needs the weights of the graph"),
        ({"algorithm.name": "dpsgd", "algorithm.gamma": 0.5}, "algorithm.gamma is for choco"),
        ({"algorithm.gamma": 1.5}, "gamma"),
    ],
)
def test_what_would_spoil_replicas_is_refused(said: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        plan(**said)


def test_rounding_is_off_by_no_more_than_gamma_takes_it_to_be() -> None:
    values = np.random.default_rng(7).normal(size=VALUES).astype(np.float32)
    for compression in ("f16", "int8"):
        error = np.linalg.norm(rounded(values, compression) - values) / np.linalg.norm(values)
        assert 0 < error <= choco.ERRORS[compression]


def test_a_graph_that_changes_is_refused() -> None:
    changing = plan(**{"job.graph": "3-regular,dynamic"})
    with pytest.raises(PlanError, match="the same neighbours in every iteration"):
        gamma_of(changing, schedule_of(changing))


def test_it_needs_a_graph() -> None:
    with pytest.raises(PlanError, match="choco needs a graph"):
        Plan.of({"algorithm": {"name": "choco"}})
    with pytest.raises(PlanError, match=r"algorithm\.gamma"):
        Plan.of({"algorithm": {"gamma": 0.5}})
