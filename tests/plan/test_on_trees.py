"""Plans of jobs whose updates workers fold: which settings are refused and which are not."""

from __future__ import annotations

from typing import Any, Final

import pytest

from thalweg.errors import PlanError
from thalweg.plan import Plan
from thalweg.plan.on_trees import check


def tree(**sections: Any) -> Plan:
    return Plan.of({"aggregation": {"shape": "tree"}, **sections})


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"workers": 3},
        {"workers": "auto"},
        {"split": "clients", "inputs": 4},
        {"system": "lifl", "timing": "eager"},
        {"timing": "lazy", "routes": "kernel"},
        {"data_plane": "broker", "side_process": True, "start": "cold"},
        *({"system": name} for name in ("sf", "sl", "sl-h", "sf-mono", "sf-micro", "sl-b")),
    ],
)
def test_a_tree_of_one_node_can_be_run(keys: dict[str, Any]) -> None:
    check(tree(tree=keys))


def test_a_systems_switches_are_looked_at() -> None:
    with pytest.raises(PlanError, match="needs all its workers"):
        check(tree(tree={"system": "sl", "split": "ranges"}))


NODES: Final = {"tree": {"top": "dedicated"}, "nodes": {"count": 2}}


def test_several_nodes_can_be_run() -> None:
    check(tree(**NODES))
    check(tree(nodes={"count": 1}))
    check(tree(nodes={"count": 2}))
    check(tree(tree={"top": "dedicated", "placement": "worst-fit"}, nodes={"count": 3, "capacity": 2}))
    check(tree(**NODES, job={"clients": 4, "choose": 2}))


def test_groups_of_clients_need_several_nodes() -> None:
    check(tree(tree={"tag": "schema.json"}, nodes={"count": 2}))
    check(tree(nodes={"count": 2, "groups": ["west", "east"]}))
    for one in ({"tree": {"tag": "schema.json"}}, {"nodes": {"count": 1, "groups": ["west"]}}):
        with pytest.raises(PlanError, match="nodes of their own, and there is one node"):
            check(tree(**one))


def test_their_network_and_stress_can_be_emulated() -> None:
    check(tree(network={"profile": "lan"}, nodes={"count": 2, "link": "1gbit", "client_link": "100mbit"}))
    check(tree(nodes={"count": 2}, stress={"cpu_quota": 0.5, "parties": ["node-1", "server"]}))
    with pytest.raises(PlanError, match=r"stress\.parties names 'node-2'"):
        tree(nodes={"count": 2}, stress={"cpu_quota": 0.5, "parties": ["node-2"]})


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        (
            {"tree": {"top": "sharded"}, "repair": {"spread": True, "resend": False}},
            "repair.spread scatters losses over all bytes",
        ),
        ({"nodes": {"count": 2, "link": "1gbit"}}, "nodes.link is the rate of an emulated link"),
        ({"nodes": {"count": 2, "client_link": "1gbit"}}, "nodes.client_link is the rate of an emulated link"),
        ({"stress": {"network": "1mbit"}}, "it is between clients and one server"),
        (
            {"tree": {"top": "first-finished"}, "job": {"clients": 4, "choose": 2}},
            "only a dedicated top can add more sums later",
        ),
        (
            {"tree": {"top": "sharded"}, "job": {"clients": 4, "goal": 2}},
            "job.goal replaces a lost node's updates by others",
        ),
        ({"transport": {"url": "memory"}}, "memory only the server can listen"),
        ({"transport": {"url": "mqtt"}}, "mqtt only the server can listen"),
    ],
)
def test_what_several_nodes_cannot_have_is_named(sections: dict[str, Any], named: str) -> None:
    with pytest.raises(PlanError, match=named):
        check(tree(**{**NODES, **sections}))


RAY: Final = {"count": 2, "engine": "ray"}


def test_ray_may_place_several_nodes() -> None:
    check(tree(nodes=RAY))
    check(tree(nodes={**RAY, "ray_address": "auto"}))
    check(tree(nodes={**RAY, "ray_address": "[fd00::1]:6379", "ray_wait": "5s"}))
    check(tree(nodes=RAY, transport={"url": "shm"}))


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"nodes": {"engine": "ray", "count": 1}}, "places nodes, and the job has one"),
        ({"nodes": {"count": 2, "ray_address": "auto"}}, "nodes.ray_address has no effect .* it is for Ray"),
        ({"nodes": {**RAY, "ray_address": "10.0.0.1"}}, "nodes.ray_address is '10.0.0.1'"),
        ({"nodes": {**RAY, "ray_address": "ray://10.0.0.1:10001"}}, "nodes.ray_address is 'ray://"),
        ({"nodes": RAY, "network": {"profile": "lan"}}, r"\[network\] is for nodes on this machine"),
        ({"nodes": {**RAY, "ray_address": "auto"}, "transport": {"url": "shm"}}, "shm stays within one machine"),
    ],
)
def test_what_ray_cannot_have_is_named(sections: dict[str, Any], named: str) -> None:
    with pytest.raises(PlanError, match=named):
        check(tree(**sections))


@pytest.mark.parametrize("section", ["tree", "nodes"])
def test_a_tree_needs_its_shape(section: str) -> None:
    with pytest.raises(PlanError, match=rf"\[{section}\] is for aggregation trees") as caught:
        check(Plan.of({section: {}}))
    assert "--aggregation tree" in caught.value.hint


def test_workers_fold_whole_updates() -> None:
    with pytest.raises(PlanError, match="whole updates"):
        check(Plan.of({"aggregation": {"shape": "tree", "partial": "keep"}}))


def test_a_graph_has_no_tree() -> None:
    with pytest.raises(PlanError, match=r"aggregation.shape"):
        tree(job={"graph": "ring"})
