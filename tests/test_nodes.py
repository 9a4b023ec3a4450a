"""The API of nodes: a user's own models, averaged with those of neighbours, and the example."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thalweg import Node, Step, _core, dpsgd, step_size
from thalweg.errors import LinkError, PlanError
from thalweg.graphs import mixing, schedule

EXAMPLE = Path(__file__).parent.parent / "examples" / "decentralized.py"


class Arrays:
    """A model of three numbers. Training adds the node's own number to each."""

    def model(self) -> dict[str, Any]:
        return {"w": np.zeros(3, dtype=np.float32)}

    def train(self, model: dict[str, Any], data: float, config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        model["w"] += data
        return 1, {"round": config["round"]}

    def evaluate(self, model: dict[str, Any], data: float) -> dict[str, float]:
        return {"off": float(abs(model["w"] - data).max())}


def run(nodes: list[Node], rounds: int, **more: Any) -> dict[str, list[Step]]:
    """Run all nodes at the same time and close them; return the results of each node's iterations."""
    steps: dict[str, list[Step]] = {node.name: [] for node in nodes}

    def work(node: Node) -> None:
        with node:
            steps[node.name] += dpsgd(node, rounds, **more)

    threads = [threading.Thread(target=work, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return steps


def test_models_are_what_the_reference_says() -> None:
    names = ["a", "b", "c", "d"]
    nodes = [Node(Arrays(), name=name, data=float(at)) for at, name in enumerate(names)]
    star = schedule("star", 4, 0).at(1)
    for at, node in enumerate(nodes):
        row = mixing.metropolis_row(star, at)
        weights = {names[other]: weight for other, weight in row.items() if other != at}
        node.meet({name: nodes[names.index(name)].address for name in weights}, weights)
    steps = run(nodes, 3, data=0.0)
    models = np.zeros(4)
    matrix = mixing.metropolis(star)
    for number in (1, 2, 3):
        models = matrix @ (models + np.arange(4))
        for at, name in enumerate(names):
            step = steps[name][number - 1]
            assert step.number == number
            assert step.metrics["off"] == pytest.approx(abs(models[at]), rel=1e-5)
            assert step.complete
    assert sorted(steps["a"][0].received) == ["b", "c", "d"]
    assert steps["b"][0].received == ["a"]
    np.testing.assert_allclose([node.model["w"][0] for node in nodes], models, rtol=1e-5)


def test_neighbours_have_equal_weights_unless_others_are_given() -> None:
    nodes = [Node(Arrays(), name=name, data=float(at)) for at, name in enumerate("ab")]
    nodes[0].meet({"b": nodes[1].address})
    nodes[1].meet({"a": nodes[0].address})
    steps = run(nodes, 2, data=0.0, every=2)
    assert [bool(step.metrics) for step in steps["a"]] == [False, True]
    assert [step.report["exchanges"][0]["weight"] for step in steps["a"]] == [0.5, 0.5]
    np.testing.assert_allclose(nodes[0].model["w"], 1.0)


def on_a_ring(app: Arrays, data: list[float], **more: Any) -> list[Node]:
    """Four nodes that know each other."""
    nodes = [Node(app, name=name, data=own, **more) for name, own in zip("abcd", data, strict=True)]
    for at, node in enumerate(nodes):
        node.meet({other.name: other.address for other in (nodes[at - 1], nodes[(at + 1) % 4])})
    return nodes


def test_with_gamma_models_go_so_far_towards_what_is_known_of_their_neighbours() -> None:
    nodes = on_a_ring(Arrays(), [0.0, 1.0, 2.0, 3.0])
    turns = {0.25: 3, 1.0: 2}

    def work(node: Node) -> None:
        with node:
            for gamma, rounds in turns.items():
                list(dpsgd(node, rounds, gamma=gamma))

    threads = [threading.Thread(target=work, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    models, matrix = np.zeros(4), mixing.metropolis(schedule("ring", 4, 0).at(1))
    for gamma, rounds in turns.items():
        for _ in range(rounds):
            models += np.arange(4)  # nothing is rounded, so the replicas are the models themselves
            models += gamma * (matrix @ models - models)
    np.testing.assert_allclose([node.model["w"][0] for node in nodes], models, rtol=1e-6)


class Once(Arrays):
    """An app that trains only in the first iteration."""

    def train(self, model: dict[str, Any], data: float, config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        return super().train(model, data * (config["round"] == 1), config)


def test_with_gamma_models_meet_closer_than_they_are_rounded() -> None:
    assert 0.5 < step_size("ring", 16, "int8") < 1.0
    gamma = step_size("ring", 4, "int8")
    apart = []
    for chosen in (gamma, None):
        nodes = on_a_ring(Once(), [1 + at / 7 for at in range(4)], compress="int8")
        run(nodes, 60, gamma=chosen)
        apart.append(max(abs(float(node.model["w"][0]) - 1 - 1.5 / 7) for node in nodes))
    assert apart[0] < 1e-4 < apart[1]


def test_choco_needs_whole_updates_of_the_same_neighbours() -> None:
    for node in (
        Node(Arrays(), name="a", data=1.0, wait="deadline"),
        Node(Arrays(), name="a", data=1.0, mixing="renormalise"),
    ):
        with node, pytest.raises(PlanError, match="missing for ever"):
            list(dpsgd(node, 1, gamma=1.0))
    with Node(Arrays(), name="b", data=1.0) as node:
        with pytest.raises(PlanError, match="gamma is 2"):
            list(dpsgd(node, 1, gamma=2.0))
        list(dpsgd(node, 1, gamma=1.0))
        with Node(Arrays(), name="a", data=1.0) as other:
            node.meet({"a": other.address})
            other.meet({"b": node.address})
            with pytest.raises(PlanError, match="others were met"):
                list(dpsgd(node, 1, gamma=1.0))
    with pytest.raises(PlanError, match="changes"):
        step_size("3-regular,dynamic", 16)


def test_a_node_alone_trains_alone() -> None:
    with Node(Arrays(), name="a", data=1.0) as node:
        assert [step.number for step in dpsgd(node, 3)] == [1, 2, 3]
        assert [step.number for step in dpsgd(node, 2)] == [4, 5]
        np.testing.assert_allclose(node.model["w"], 5.0)


def test_nodes_that_do_not_begin_alike_refuse_each_other() -> None:
    class Other(Arrays):
        def model(self) -> dict[str, Any]:
            return {"w": np.ones(3, dtype=np.float32)}

    with Node(Arrays(), name="a", data=1.0) as one, Node(Other(), name="b", data=1.0) as other:
        one.meet({"b": other.address})
        other.meet({"a": one.address})
        with pytest.raises(_core.CoreError, match="start"):
            list(dpsgd(one, 1))


def test_missing_neighbours_are_named() -> None:
    with Node(Arrays(), name="b", data=1.0) as node:
        node.meet({"a": ""})
        with pytest.raises(LinkError, match="b has not met a after 0"):
            list(dpsgd(node, 1, timeout=0))


@pytest.mark.parametrize("weights", [{"b": 0.0}, {"b": 0.7, "c": 0.7}, {"x": 0.1}])
def test_weights_that_cannot_be_are_refused(weights: dict[str, float]) -> None:
    with Node(Arrays(), name="a", data=1.0) as node, pytest.raises(PlanError, match="weight"):
        node.meet({"b": "tcp://127.0.0.1:1", "c": "tcp://127.0.0.1:1"}, weights)


def test_beyond_this_machine_a_node_needs_certificates() -> None:
    with pytest.raises(LinkError, match="nothing says who this node is"):
        Node(Arrays(), name="a", listen="tcp://0.0.0.0:0", data=1.0)
    with pytest.raises(PlanError, match="go together"):
        Node(Arrays(), name="a", data=1.0, cert="a.crt")


def test_the_example_learns() -> None:
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    assert all("iteration 10: loss 0.0000" in line for line in lines[1::2])
