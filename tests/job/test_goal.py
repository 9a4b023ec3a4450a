"""Rounds with a goal over several nodes: exactly so many updates count, the first ones, whatever becomes of nodes."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from tests.job.test_tree import CLIENTS, PLACED, Job, counted, job, mean, when_answered
from thalweg.job.tree.known import Received

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers share memory as Linux alone does")


def reasons(outcome: dict[str, Any]) -> dict[str, str]:
    return {part["client"]: part["reason"] for part in outcome["participants"] if part["state"] != "whole"}


@pytest.mark.parametrize("come", [False, True])
def test_the_first_updates_count_and_all_others_are_named(come: bool) -> None:
    slow = threading.Event()

    def before(_: Job, client: str, number: int) -> None:
        if client in "de" and number == 1:
            slow.wait(60)

    with job("dedicated", before, come=come, timeout=60.0, goal=3, expected=len(CLIENTS)) as made:
        outcome = made.round(1)
        assert counted(outcome) == {"a", "b", "c"}
        assert (outcome["complete"], outcome["expected"]) == (True, 3)
        assert made.bits() == mean(1, ["a", "b", "c"])
        assert reasons(outcome) == dict.fromkeys("de", "was still training when the round ended")
        slow.set()
        made.tree.end_confirming(lambda: None)
        while made.tree.wait(len(CLIENTS), 1.0) < len(CLIENTS):
            pass
        for number in (2, 3, 4):
            outcome = made.round(number)
            first = counted(outcome)
            assert len(first) == 3
            assert {part["client"] for part in outcome["participants"]} == set(CLIENTS)
            assert made.bits() == mean(number, sorted(first))
            after = {"arrived after the updates with which the round reached its goal"}
            after |= {f"was still {what} when the round ended" for what in ("training", "sending its update")}
            after |= {f"was still {what} when the round ended" for what in ("receiving the model",)}
            after |= {"was still waiting to send its update when the round ended"}
            assert set(reasons(outcome).values()) <= after


def test_an_update_that_waits_takes_the_place_of_one_whose_node_is_lost() -> None:
    lost = threading.Event()

    def before(_: Job, client: str, number: int) -> None:
        if client != "c" and number == 1:
            lost.wait(60)

    with job("dedicated", before, goal=3) as made:

        def do(asked: str, answer: Received[Any], request: Any) -> None:
            arrivals = () if answer.head is None or asked != "admit" else answer.head.arrivals
            # The root knows of the update of c, and is about to have it folded.
            if ("c", True) in arrivals:
                made.kill("node-2")
                lost.set()

        when_answered(made, do)
        outcome = made.round(1)
        assert len(counted(outcome)) == 3
        assert "c" not in counted(outcome)
        assert outcome["complete"]
        assert made.bits() == mean(1, sorted(counted(outcome)))
        assert reasons(outcome)["c"] == "its node node-2 is gone: killed by signal 9"


def test_a_node_that_is_lost_after_the_goal_was_reached_leaves_its_places_to_updates_that_were_kept() -> None:
    arrived: list[str] = []
    trained: list[tuple[str, int]] = []

    def before(_: Job, client: str, number: int) -> None:
        trained.append((client, number))

    with job("dedicated", before, goal=3, timeout=5.0, grace=0.5) as made:

        def do(asked: str, answer: Received[Any], request: Any) -> None:
            news = () if answer.head is None or asked != "admit" else answer.head.arrivals
            arrived.extend(client for client, _ in news)
            # With this answer the root reaches its goal, and ends the batch at all nodes.
            if news and len(arrived) >= 3 and "node-2" in made.processes and "c" in arrived[:3]:
                made.kill("node-2")

        when_answered(made, do)
        for number in range(1, 9):
            arrived.clear()
            outcome = made.round(number)
            assert len(counted(outcome)) == 3, outcome["participants"]
            assert outcome["complete"]
            assert made.bits() == mean(number, sorted(counted(outcome)))
            if made.processes["node-2"].poll() is not None:
                break
        assert len(trained) == len(set(trained)), "nobody trains twice in a round"


def with_clients_away(enough: int) -> tuple[dict[str, Any], list[str], bytes]:
    """Run a round two of whose clients die, and are started again once a node says that it waits for them.

    Returns the outcome, what nodes said, and the model.
    """
    outcomes: list[dict[str, Any]] = []
    said: list[str] = []

    def before(made: Job, client: str, _: int) -> None:
        if client == "a":
            made.kill_client("c")
            made.kill_client("e")

    with job("dedicated", before, goal=4, enough=enough, outage=60.0, timeout=60.0, apart="ce") as made:
        running = threading.Thread(target=lambda: outcomes.append(made.round(1)))
        running.start()
        nodes = [made.tree.node(name) for name in PLACED]
        while running.is_alive() and not any("too few updates" in line for line in said):
            made.tree.await_clients(nodes, 0.1)
            said += made.tree.notes()
        are_back = running.is_alive()
        if are_back:
            made.start_client("c")
            made.start_client("e")
        running.join()
        # One of them may still be starting, and a job that is over lets nobody in.
        made.tree.end_confirming(lambda: None)
        while are_back and made.tree.wait(len(CLIENTS), 1.0) < len(CLIENTS):
            pass
        return outcomes[0], said, made.bits()


def test_a_round_with_too_few_updates_waits_for_the_end_of_an_outage() -> None:
    outcome, said, bits = with_clients_away(4)
    assert any("waits up to 60 s for clients that are away: " in line for line in said)
    assert {"a", "b", "d"} < counted(outcome)
    assert len(counted(outcome)) == 4, "one of the two that are back is too many"
    assert outcome["complete"]
    assert bits == mean(1, sorted(counted(outcome)))


def test_a_round_with_enough_updates_waits_only_for_the_grace() -> None:
    outcome, _, bits = with_clients_away(3)
    assert counted(outcome) == {"a", "b", "d"}
    assert (outcome["complete"], outcome["expected"]) == (False, 4)
    assert bits == mean(1, ["a", "b", "d"])


def test_drawn_clients_are_more_than_the_goal() -> None:
    with job("dedicated", choose=4, goal=2) as made:
        for number in range(1, 6):
            outcome = made.round(number)
            assert len(outcome["participants"]) == 4
            assert len(counted(outcome)) == 2
            assert made.bits() == mean(number, sorted(counted(outcome)))
