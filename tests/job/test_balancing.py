"""Clients leave an overloaded node while a job runs: no update is lost or counted twice, and the bits are the star's.

What nodes measure depends on the machine. So most tests replace the measurements; nodes, clients and moves are real.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from tests.job.test_tree import CLIENTS, TOPS, Job, counted, job, mean, pytestmark
from thalweg.job.tree.balancing import LoadBalancer
from thalweg.job.tree.known import Node
from thalweg.plan import Plan
from thalweg.trees import balance, live
from thalweg.trees.balance import STEADY, Rules, balance_in_words

__all__ = ["pytestmark"]

# Each node can hold one and a half updates at once, and decides before each round.
RULES: Final = Rules("worst-fit", 700, 0.0, 1500, {})


class Measured(LoadBalancer):
    """A balancer whose nodes measure the load that ``share`` gives for each client, by node and decision."""

    def __init__(
        self,
        share: Callable[[str, int], float],
        rules: Rules = RULES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(rules, clock)
        self._share, self._decisions = share, dict[str, int]()

    def _measured(self, node: Node) -> list[dict[str, object]]:
        number = self._decisions[node.name] = self._decisions.get(node.name, 0) + 1
        queue = self._share(node.name, number) * len(node.clients)
        return [{"seconds": queue, "queue": queue}]


def is_slow(slow: str) -> Callable[[str, int], float]:
    """Return loads of which one node's are high."""
    return lambda node, _: 1.0 if node == slow else 0.1


def homes(made: Job) -> dict[str, list[str]]:
    return {node.name: list(node.clients) for node in made.tree._nodes}


def start_again(made: Job, client: str) -> None:
    """End a client's process if it runs, start another, and wait until it is connected."""
    made.kill_client(client)
    while made.tree.wait(len(CLIENTS), 0.0) == len(CLIENTS):
        pass
    made.start_client(client)
    while made.tree.wait(len(CLIENTS), None) < len(CLIENTS):
        pass


def check_all_counted(made: Job, number: int) -> None:
    """Run a round, in which each client counts once and the model has one server's bits."""
    outcome = made.round(number)
    assert outcome["complete"], outcome["participants"]
    assert sorted(part["client"] for part in outcome["participants"]) == CLIENTS
    assert counted(outcome) == set(CLIENTS)
    assert made.bits() == mean(number, CLIENTS)


@pytest.mark.parametrize("top", TOPS)
def test_a_client_leaves_an_overloaded_node_and_all_rounds_have_all_updates(top: str) -> None:
    with job(top, timeout=60.0, grace=30.0) as made:
        made.tree.balancer = Measured(is_slow("node-1"))
        for number in range(1, STEADY):
            check_all_counted(made, number)
        assert homes(made) == {"node-1": ["a", "b"], "node-2": ["c"], "node-3": ["d", "e"]}, "it may be a peak"
        check_all_counted(made, STEADY)
        assert homes(made) == {"node-1": ["a"], "node-2": ["c", "b"], "node-3": ["d", "e"]}
        for number in range(STEADY + 1, STEADY + 4):
            check_all_counted(made, number)
        assert json.loads(made.tree.departed()) == [], "the client is not gone"
        assert sorted(json.loads(made.tree.clients())) == CLIENTS
        decisions = made.tree.balances()
        assert [one.number for one in decisions] == list(range(1, STEADY + 4))
        assert [len(one.moves) for one in decisions] == [0, 0, 1, 0, 0, 0]
        assert not made.tree.balances(), "each is read once"
        (note,) = (line for line in made.tree.notes() if "b from" in line)
        assert note == (
            "balance 3: b from node-1 to node-2; node-1 holds 2.0 updates (k * E) and can hold 1.5 (MC), in each of "
            "the last 3 measurements over a tenth more; 1 client moves to node-2, which then holds 1.1 of 1.5; load: "
            "node-1 2 of 1.5 (2 clients), node-2 0.1 of 1.5 (1 client), node-3 0.2 of 1.5 (2 clients)"
        )


def test_clients_of_nodes_that_came_by_themselves_move_too() -> None:
    with job("dedicated", come=True, expected=len(CLIENTS), timeout=60.0, grace=30.0) as made:
        made.tree.balancer = Measured(is_slow("node-3"))
        for number in range(1, STEADY + 3):
            check_all_counted(made, number)
        assert homes(made) == {"node-1": ["a", "b"], "node-2": ["c", "e"], "node-3": ["d"]}


def test_load_that_swings_moves_nobody() -> None:
    def swinging(node: str, number: int) -> float:
        is_high = number % STEADY == 0
        return 1.0 if is_high == (node == "node-1") else 0.1

    with job("dedicated", timeout=60.0, grace=30.0) as made:
        before = homes(made)
        made.tree.balancer = Measured(swinging)
        for number in range(1, 4 * STEADY):
            check_all_counted(made, number)
        assert homes(made) == before
        assert not any(one.moves for one in made.tree.balances())


def test_load_that_swings_slowly_sends_nobody_back() -> None:
    def swinging(node: str, number: int) -> float:
        return 1.0 if node == f"node-{1 + (number - 1) // STEADY % 3}" else 0.1

    with job("dedicated", timeout=60.0, grace=30.0) as made:
        made.tree.balancer = Measured(swinging)
        for number in range(1, 5 * STEADY):
            check_all_counted(made, number)
        moves = [move for one in made.tree.balances() for move in one.moves]
        assert moves
        assert len({(move.client, move.source) for move in moves}) == len(moves)


def test_a_client_that_does_not_reach_its_new_node_goes_back_and_stays() -> None:
    with job("dedicated", timeout=60.0, grace=2.0, apart="b") as made:
        start_again(made, "b")
        made.tree.balancer = Measured(is_slow("node-1"))
        for number in range(1, STEADY):
            check_all_counted(made, number)
        before = homes(made)
        made.kill_client("b")  # the root learns of that only from an answer of its node
        for number in range(STEADY, STEADY + 3):
            assert counted(made.round(number)) == set(CLIENTS) - {"b"}
        assert homes(made) == before
        assert [name for name, *_ in json.loads(made.tree.departed())] == ["b"]
        assert "did not reach the new node and stay where they were: 'b'" in made.tree.notes()
        start_again(made, "b")
        for number in range(STEADY + 3, 3 * STEADY + 3):
            check_all_counted(made, number)
        assert homes(made) == before, "it is not moved again"


@pytest.mark.parametrize("lost", ["node-1", "node-2"])
def test_a_node_that_is_lost_when_a_client_has_moved_costs_a_round_its_clients_and_no_more(lost: str) -> None:
    """It is the node that the client has left, or the one that it went to."""

    def before(made: Job, client: str, number: int) -> None:
        if (client, number) == ("b", STEADY):
            made.kill(lost)

    with job("dedicated", before, timeout=60.0, grace=30.0) as made:
        made.tree.recovery.is_over = lambda _: True
        made.tree.balancer = Measured(is_slow("node-1"))
        for number in range(1, STEADY):
            check_all_counted(made, number)
        outcome = made.round(STEADY)
        gone = {"a"} if lost == "node-1" else {"b", "c"}
        left = [client for client in CLIENTS if client not in gone]
        # The node may have sent its sums before it was lost.
        assert counted(outcome) in (set(left), set(CLIENTS))
        assert made.bits() == mean(STEADY, sorted(counted(outcome)))
        made.tree.balancer = None
        for number in (STEADY + 1, STEADY + 2):
            check_all_counted(made, number)


@pytest.mark.parametrize("split", ["clients", "ranges"])
def test_the_measurements_of_real_nodes_reach_the_balancer(split: str) -> None:
    workers: Any = live.options(plan({"split": split, "every": "1ms", "workers": 2}))["workers"]
    with job("dedicated", timeout=60.0, grace=30.0, workers=workers) as made:
        # A capacity that no load exceeds.
        made.tree.balancer = LoadBalancer(Rules("best-fit", 700, 0.0, 10**6, {}))
        found: set[str] = set()
        number = 0
        while found != {"node-1", "node-2", "node-3"}:
            number += 1
            check_all_counted(made, number)
            decisions = made.tree.balances()
            found |= {node.node for one in decisions for node in one.nodes if node.seconds is not None}
            assert all(0 <= node.queue <= node.clients for one in decisions for node in one.nodes)
        assert homes(made) == {"node-1": ["a", "b"], "node-2": ["c"], "node-3": ["d", "e"]}


def plan(tree: Mapping[str, Any], **nodes: Any) -> Plan:
    return Plan.of({"aggregation": {"shape": "tree"}, "tree": tree, "nodes": {"count": 4, "capacity": 3, **nodes}})


def test_clients_move_where_nodes_measure_their_load() -> None:
    found = balance.rules(plan({"split": "clients", "every": "5s", "placement": "first-fit"}, groups=["x", "y"]))
    assert found == Rules("first-fit", 700, 5.0, 3000, {"node-0": 0, "node-1": 1, "node-2": 0, "node-3": 1})
    assert balance.rules(plan({"split": "clients"}, count=1)) is None
    assert balance.rules(plan({})) is not None
    assert balance.rules(plan({"split": "clients", "scaling": "fixed"})) is not None
    assert balance.rules(plan({"system": "sl-h"})) is None, "an autoscaler measures no load"


def test_a_decision_waits_until_it_is_due() -> None:
    now = 0.0
    balancer = Measured(lambda *_: 1.0, replace(RULES, every=5.0), lambda: now)
    one = Node("one", ["a"], reached="tcp://1:1")
    assert balancer.decide([one], ()) is None
    now = 5.0
    decision = balancer.decide([one], ())
    assert decision is not None
    assert not decision.moves
    assert balance_in_words({"number": 1, "moves": [], "reasons": ["x"], "nodes": []}) == (
        "balance 1: all clients stay; x; load: "
    )
    assert balancer.decide([one], ()) is None
