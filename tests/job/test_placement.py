"""The node of each client of a tree, and who is notified when it changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from thalweg import wire
from thalweg.job.tree import placement
from thalweg.job.tree.known import Node
from thalweg.job.tree.messages import decode
from thalweg.plan import Plan
from thalweg.trees import live


def plan(placement: str = "best-fit", **nodes: Any) -> Plan:
    tree = {"placement": placement, "top": "dedicated"}
    return Plan.of({"aggregation": {"shape": "tree"}, "tree": tree, "nodes": {"count": 4, "capacity": 4, **nodes}})


@pytest.mark.parametrize(
    ("placement", "homes"),
    [
        ("best-fit", ["node-2", "node-3", "node-3"]),
        ("worst-fit", ["node-3", "node-3", "node-3"]),
        ("first-fit", ["node-2", "node-3", "node-3"]),
    ],
)
def test_clients_of_a_lost_node_are_placed_by_the_plan(placement: str, homes: list[str]) -> None:
    left = {"node-1": 4, "node-2": 3, "node-3": 0}
    new_homes, _ = live.placed_anew(plan(placement), "node-0", ["a", "b", "c"], left)
    assert list(new_homes) == ["a", "b", "c"]
    assert sorted(new_homes.values()) == homes


def test_clients_go_where_there_is_no_room_rather_than_nowhere() -> None:
    homes, _ = live.placed_anew(plan(), "node-0", ["a", "b"], {"node-1": 4, "node-2": 5})
    assert set(homes) == {"a", "b"}


def test_clients_stay_in_their_group() -> None:
    grouped = plan(groups=["west", "east", "west", "east"])
    left = {"node-1": 0, "node-2": 3, "node-3": 0}
    assert live.placed_anew(grouped, "node-0", ["a"], left)[0] == {"a": "node-2"}
    assert live.placed_anew(grouped, "node-0", ["a"], {"node-1": 0})[0] == {}


def test_nodes_that_a_plan_does_not_name_take_clients() -> None:
    assert live.placed_anew(plan(), "west", ["a"], {"east": 2})[0] == {"a": "east"}


def test_without_a_plan_the_emptiest_node_takes_each() -> None:
    assert placement.place_evenly("node-0", ["a", "b", "c"], {"node-1": 1, "node-2": 0})[0] == {
        "a": "node-2",
        "b": "node-1",
        "c": "node-2",
    }


def nodes() -> list[Node]:
    one = Node("one", ["a"], reached="tcp://1:1", expected=1)
    two = Node("two", ["b", "c"], reached="tcp://2:2", expected=2)
    return [
        one,
        two,
        Node("three", [], reached="tcp://3:3", loss="is gone", is_empty=True),
        Node("four", ["d"], reached="tcp://4:4"),
    ]


def test_a_node_is_told_where_the_clients_of_others_belong() -> None:
    notice = placement.notice(nodes(), {"c": 3, "d": 3}, {"c": 3, "a": 2})
    expected, homes = placement.homes("two", notice)
    assert expected == 2
    assert homes.own == ["b", "c"]
    assert homes.table() == {
        "elsewhere": {"d": "tcp://4:4", "a": "tcp://1:1"},
        "others": ["tcp://4:4", "tcp://1:1"],
        "after": {"c": 3},
        "counted": {"c": 3},
    }


def test_clients_of_a_node_that_has_moved_follow_it() -> None:
    """Ray has restarted the node on another machine. The other nodes then redirect its clients to the new address."""
    all_nodes = nodes()
    all_nodes[3].reached = "tcp://10.0.0.9:4"
    for name in ("one", "two"):
        _, homes = placement.homes(name, placement.notice(all_nodes, {}, {}))
        assert homes.elsewhere["d"] == "tcp://10.0.0.9:4"
        assert "tcp://10.0.0.9:4" in homes.others


def test_clients_of_a_lost_node_are_sent_back_until_the_root_has_decided() -> None:
    all_nodes = nodes()
    all_nodes[3].loss = "is gone: killed"
    _, homes = placement.homes("one", placement.notice(all_nodes, {}, {}))
    assert homes.elsewhere["d"] == "tcp://4:4"
    assert homes.others == ["tcp://2:2"]


def test_a_client_is_told_of_a_few_nodes_only() -> None:
    many = [Node(str(place), [], reached=f"tcp://{place}:1") for place in range(20)]
    _, homes = placement.homes("15", placement.notice(many, {}, {}))
    assert homes.others == [f"tcp://{place}:1" for place in (16, 17, 18, 19, 0, 1, 2, 3)]


@pytest.mark.parametrize(
    ("listens", "advertised", "there"),
    [
        ("tcp://127.0.0.1:7071", None, "tcp://127.0.0.1:7071"),
        ("tcp://0.0.0.0:7071", None, None),
        ("tcp://[::]:7071", None, None),
        ("tcp://0.0.0.0:7071", "tcp://west.example:7071", "tcp://west.example:7071"),
    ],
)
def test_nobody_is_sent_to_an_address_of_no_host(listens: str, advertised: str | None, there: str | None) -> None:
    assert placement.reached(listens, advertised) == there


def test_a_node_without_a_reachable_address_is_not_announced() -> None:
    all_nodes = nodes()
    all_nodes[3].reached = ""
    _, homes = placement.homes("one", placement.notice(all_nodes, {}, {}))
    assert "d" not in homes.elsewhere
    assert homes.others == ["tcp://2:2"]
    _, homes = placement.homes("four", placement.notice(all_nodes, {}, {}))
    assert homes.others == [], "its clients could not be sent back to it"


def test_messages_about_placement_are_the_same_after_encoding() -> None:
    notice = placement.notice(nodes(), {"c": 3}, {"c": 3})
    assert decode(json.loads(wire.encode(notice))) == notice
