"""Which node of a run's tree is below which middle node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from thalweg.errors import PlanError
from thalweg.job.common.session import session
from thalweg.plan import Plan, on_trees
from thalweg.plan.emulated import network_of
from thalweg.trees import live, middles
from thalweg.trees.balance import rules


def plan(clients: int = 4, tree: Any = (), **nodes: Any) -> Plan:
    table = {"top": "dedicated", "placement": "worst-fit", **dict(tree)}
    job = {"clients": clients}
    return Plan.of({"job": job, "aggregation": {"shape": "tree"}, "tree": table, "nodes": nodes})


def schema(folder: Path, *channels: tuple[str, ...], clients: tuple[str, ...] = ()) -> dict[str, Any]:
    """Write a schema with a role above each channel, whose groups are given; return the keys of [tree].

    ``clients`` are further roles of clients.
    """
    names = ["trainer", *(f"role-{level}" for level in range(1, len(channels) + 1))]
    made: dict[str, Any] = {
        "name": "levels",
        "roles": [{"name": name, "isDataConsumer": name in ("trainer", *clients)} for name in (*names, *clients)],
        "channels": [
            {"name": f"channel-{at}", "pair": names[at : at + 2], "groupBy": {"type": "tag", "value": list(groups)}}
            for at, groups in enumerate(channels)
        ],
    }
    made["channels"] += [{"name": f"to-{role}", "pair": ["role-1", role]} for role in clients]
    (folder / "schema.json").write_text(json.dumps(made, indent=1))
    return {"tag": str(folder / "schema.json")}


@pytest.mark.parametrize(("below", "above"), [(1, 1), (2, 1), (5, 2), (7, 3), (1000, 999), (3, 3)])
def test_nodes_are_dealt_evenly_in_order_and_no_middle_node_is_without(below: int, above: int) -> None:
    dealt = middles.dealt(below, above)
    assert dealt == sorted(dealt)
    sizes = [dealt.count(place) for place in range(above)]
    assert sum(sizes) == below
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


def test_without_middle_nodes_all_nodes_are_the_roots() -> None:
    assert middles.parents(plan(count=3)) == {}
    placed = live.placed(plan(count=3, capacity=2))
    assert placed.of_root == placed.clients


def test_levels_are_counted_from_the_clients_upwards() -> None:
    assert middles.parents(plan(count=4, middle=[2, 1])) == {
        "node-0": "middle-1-0",
        "node-1": "middle-1-0",
        "node-2": "middle-1-1",
        "node-3": "middle-1-1",
        "middle-1-0": "middle-2-0",
        "middle-1-1": "middle-2-0",
    }


def test_each_node_may_have_clients_and_only_what_has_some_below_is_used() -> None:
    placed = live.placed(plan(clients=4, count=4, middle=2, capacity=1))
    assert placed.of_root == {"middle-1-0": ["client-1", "client-2"], "middle-1-1": ["client-3", "client-4"]}
    assert placed.reasons[-2:] == ["below middle-1-0: node-0, node-1", "below middle-1-1: node-2, node-3"]
    assert not any("the top is at" in reason for reason in placed.reasons)
    # Best fit fills node-0 first, so nothing else is started.
    placed = live.placed(plan(clients=4, tree={"placement": "best-fit"}, count=4, middle=[2, 2], capacity=4))
    assert placed.above == {"node-0": "middle-1-0", "middle-1-0": "middle-2-0"}
    assert placed.below == {"middle-1-0": ["node-0"], "middle-2-0": ["middle-1-0"]}


def test_groups_of_a_schema_are_below_the_group_that_their_label_begins_with(tmp_path: Path) -> None:
    cities = ("a/us/west", "a/uk/london", "a/us/east", "a/usa")
    tree = schema(tmp_path, cities, ("a/us", "a/uk", "a"), ("a",), ("a",))
    assert middles.parents(plan(tree=tree, count=5)) == {
        "node-0": "middle-1-0",
        "node-1": "middle-1-1",
        "node-2": "middle-1-0",
        "node-3": "middle-1-2",  # "a/usa" is not below "a/us"
        "node-4": "middle-1-0",  # the fifth node serves the first group again
        "middle-1-0": "middle-2-0",
        "middle-1-1": "middle-2-0",
        "middle-1-2": "middle-2-0",
    }


def test_nodes_without_groups_are_dealt_to_those_of_the_channel_above_in_turn(tmp_path: Path) -> None:
    tree = schema(tmp_path, (), ("west", "east"), ())
    assert middles.parents(plan(tree=tree, count=3)) == {
        "node-0": "middle-1-0",
        "node-1": "middle-1-1",
        "node-2": "middle-1-0",
    }


def test_a_schema_of_two_levels_has_no_middle_nodes(tmp_path: Path) -> None:
    assert middles.parents(plan(tree={**schema(tmp_path, ("w", "e"), ()), "top": "first-finished"}, count=2)) == {}


def test_a_schema_with_two_roles_on_a_level_is_refused_with_its_line(tmp_path: Path) -> None:
    tree = schema(tmp_path, ("a",), (), clients=("other",))
    assert middles.parents(plan(tree=tree, count=2)) == {}, "its clients may be of several kinds"
    tree = schema(tmp_path, ("a",), ("a",), (), clients=("other",))
    with pytest.raises(PlanError, match=r"line \d+: 'other' is on the same level as") as caught:
        middles.parents(plan(tree=tree, count=2))
    assert caught.value.hint == "Keep one role on each level"


def test_a_schema_has_a_limit_of_levels_too(tmp_path: Path) -> None:
    most = plan(tree=schema(tmp_path, ("a",), *[("a",)] * 8, ()), count=2)
    assert middles.parents(most)["middle-7-0"] == "middle-8-0"
    tree = schema(tmp_path, ("a",), *[("a",)] * 9, ())
    with pytest.raises(PlanError, match=r"line \d+: 'role-11' is 11 channels above the clients, and .* 8 levels"):
        middles.parents(plan(tree=tree, count=2))


def test_clients_below_middle_nodes_do_not_move_on_load(tmp_path: Path) -> None:
    assert rules(plan(count=4)) is not None
    assert rules(plan(count=4, middle=2)) is None
    assert rules(plan(count=4, tree=schema(tmp_path, ("a",), ()))) is not None
    assert rules(plan(count=4, tree=schema(tmp_path, ("a",), ("a",), ()))) is None


@pytest.mark.parametrize(
    ("nodes", "tree", "cause"),
    [
        ({"count": 2, "middle": 3}, {}, "3 middle nodes on a level with 2 nodes below it"),
        ({"count": 4, "middle": [2, 3]}, {}, "3 middle nodes on a level with 2 nodes below it"),
        ({"count": 4, "middle": 2}, {"top": "sharded"}, "only a dedicated top takes their sums"),
        ({"count": 4, "middle": 2}, {"tag": "s.json"}, "both say which middle nodes there are"),
        ({"count": 1, "middle": 1}, {"top": "first-finished"}, "nodes.middle has no effect in a tree of one node"),
        ({"count": 4, "middle": 0}, {}, "middle in .nodes. is 0, not at least 1"),
        ({"count": 4, "middle": [1] * 9}, {}, "middle in .nodes."),
        ({"count": 4, "middle": ["x"]}, {}, "middle in .nodes. is 'x', not a whole number"),
    ],
)
def test_impossible_middle_nodes_are_refused(nodes: dict[str, Any], tree: dict[str, Any], cause: str) -> None:
    with pytest.raises(PlanError, match=cause) as caught:
        on_trees.check(plan(tree=tree, **nodes))
    assert caught.value.hint


def test_middle_nodes_have_hosts_and_links_of_their_own() -> None:
    base = plan(count=4, middle=[2, 1], link="100mbit").merge({"network.rate": "50mbit"})
    placed = live.placed(base.merge({"nodes.capacity": 1}))
    made = network_of(base, placed.homes, list(placed.below))
    hosts = [host.name for host in made.hosts]
    assert hosts[:8] == ["server", "node-0", "node-1", "node-2", "node-3", "middle-1-0", "middle-1-1", "middle-2-0"]
    assert made.clients == ["client-1", "client-2", "client-3", "client-4"]
    links = {link.name: (link.a, link.b, link.ab.rate) for link in made.links}
    assert links["middle-2-0"] == ("middle-2-0", "switch", 100_000_000)
    assert ("middle-1-0", "node-3") in made.connected or ("node-3", "middle-1-0") in made.connected
    # Before anything is placed, the plan's own middle nodes are there.
    assert {"middle-1-0", "middle-1-1", "middle-2-0"} < {host.name for host in network_of(base).hosts}


def test_a_middle_node_may_be_under_stress_if_it_is_used() -> None:
    base = plan(count=4, middle=2).merge({"stress.cpu_quota": 0.5, "stress.parties": ["middle-1-1"]})
    assert base.stress is not None
    with pytest.raises(PlanError, match=r"stress\.parties names 'middle-1-2'"):
        base.merge({"stress.parties": ["middle-1-2"]})


def test_a_middle_node_of_a_schema_may_be_under_stress(tmp_path: Path) -> None:
    base = plan(count=2, tree=schema(tmp_path, ("a",), ("a",), ()))
    made = base.merge({"stress.cpu_quota": 0.5, "stress.parties": ["middle-1-0"]})
    assert made.stress is not None
    other = base.merge({"stress.cpu_quota": 0.5, "stress.parties": ["middle-1-1"]})
    with pytest.raises(PlanError, match=r"stress\.parties names 'middle-1-1'") as caught, session(other, (), print):
        pass  # refused before anything starts
    assert "middle-1-0" in caught.value.hint
