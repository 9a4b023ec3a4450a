"""The control plane's settings, made from a plan, and its decisions."""

from __future__ import annotations

from pathlib import Path

import pytest

from thalweg import trees
from thalweg.errors import PlanError, ThalwegError
from thalweg.plan import Plan

FIGURE_8 = """
[job]
clients = {clients}
rounds = 1
{job}
[model]
name = "payload:{size}"
[tree]
split = "clients"
workers = 64
{tree}
[nodes]
link = "442mbit"
{nodes}
"""
SCHEMA = """{{
  "roles": [{{"name": "trainer", "isDataConsumer": true}},
            {{"name": "aggregator"}}, {{"name": "top"}}],
  "channels": [
    {{"name": "up", "pair": ["trainer", "aggregator"],
     "groupBy": {{"type": "tag", "value": [{groups}]}}}},
    {{"name": "global", "pair": ["aggregator", "top"]}}]
}}"""


def plan(clients: int = 20, tree: str = "", nodes: str = "", size: str = "29MB", job: str = "") -> Plan:
    return Plan.loads(FIGURE_8.format(clients=clients, tree=tree, nodes=nodes, size=size, job=job))


def one(plan: Plan) -> trees.SimulatedRound:
    (row,) = trees.simulated(plan).rounds
    return row


@pytest.mark.parametrize("size", ["29MB", "232MB"])
@pytest.mark.parametrize(("clients", "used"), [(20, 1), (60, 3), (100, 5)])
def test_best_fit_uses_as_many_nodes_as_the_paper_and_worst_fit_all(clients: int, used: int, size: str) -> None:
    best, worst = (
        one(plan(clients, f"placement = '{placement}'", size=size)) for placement in ("best-fit", "worst-fit")
    )
    assert (best.nodes_used, worst.nodes_used) == (used, 5)
    assert best.counted == best.folded == worst.counted == worst.folded == clients
    assert best.completion_seconds <= worst.completion_seconds


def test_a_plan_is_decided_with_reasons() -> None:
    planned = trees.planned(plan(60))
    assert [(tree.node, tree.clients, tree.leaves) for tree in planned.plan.trees] == [
        (0, 20, 10),
        (1, 20, 10),
        (2, 20, 10),
    ]
    assert planned.reasons[0].table() == {
        "kind": "placed",
        "clients": 60,
        "nodes": 3,
        "policy": "best-fit",
        "text": "60 clients placed on 3 nodes by best fit: the fullest node with room",
    }
    assert planned.homeless == 0


def test_keys_of_a_plan_go_over_the_switches_of_its_system() -> None:
    scenario = trees.scenario(plan(tree="system = 'sl-h'\nplacement = 'best-fit'\n[tree.costs]\ncold_start = '1s'"))
    assert scenario.switches == {
        "data_plane": "pool",
        "side_process": False,
        "levels": "tree",
        "scaling": "knative",
        "placement": "best-fit",
        "timing": "lazy",
        "reuse": False,
        "start": "cold",
    }
    assert (scenario.costs, scenario.config.history, scenario.nodes[0].capacity) == (
        {"cold_start": 1.0},
        700,
        20_000,
    )


def test_the_same_seed_gives_the_same_rounds() -> None:
    again = [trees.simulated(plan(100, "spread = '60s'", job="goal = 63")).rounds for _ in range(2)]
    assert again[0] == again[1]
    assert again[0][0].counted == 63


def test_the_goal_of_a_tree_is_that_of_the_job() -> None:
    with pytest.raises(PlanError, match=r"unknown key 'goal' in \[tree\]") as refused:
        plan(tree="goal = 10")
    assert refused.value.hint.startswith("Move it to [job]. ")


def test_a_plan_without_sections_has_the_papers_nodes() -> None:
    scenario = trees.scenario(Plan.of({}))
    assert (len(scenario.nodes), scenario.clients, scenario.bytes) == (5, 4, 2_330_856)


def schema(folder: Path, *groups: str) -> str:
    path = folder / "schema.json"
    path.write_text(SCHEMA.format(groups=", ".join(f'"{group}"' for group in groups)))
    return f"tag = '{path}'"


def test_groups_of_a_schema_go_to_nodes_of_their_own(tmp_path: Path) -> None:
    scenario = trees.scenario(plan(tree=schema(tmp_path, "west", "east")))
    assert [node.group for node in scenario.nodes] == [0, 1, 0, 1, 0]
    planned = trees.planned(plan(tree=schema(tmp_path, "west", "east")))
    assert [(tree.node, tree.clients) for tree in planned.plan.trees] == [(0, 10), (1, 10)]
    scenario = trees.scenario(plan(tree=schema(tmp_path, "west", "east"), nodes="groups = ['east', 'east', 'west']"))
    assert [node.group for node in scenario.nodes] == [1, 1, 0, 1, 1]


@pytest.mark.parametrize(
    ("groups", "nodes", "cause"),
    [
        (("west", "east"), "count = 1", "2 groups for 1 nodes"),
        (("west", "east"), "groups = ['west']", "line 6: no node serves the group 'east'"),
        (("west",), "groups = ['west', 'north']", "'north', which is no group"),
    ],
)
def test_an_impossible_placement_is_refused(tmp_path: Path, groups: tuple[str, ...], nodes: str, cause: str) -> None:
    with pytest.raises(PlanError, match=cause) as refused:
        trees.scenario(plan(tree=schema(tmp_path, *groups), nodes=nodes))
    assert refused.value.hint


def test_a_schema_that_is_no_tree_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(SCHEMA.format(groups='"a"').replace('["aggregator", "top"]', '["aggregator", "tip"]'))
    with pytest.raises(PlanError) as refused:
        trees.scenario(plan(tree=f"tag = '{path}'"))
    assert refused.value.cause == f'{path}, line 7: the channel "global" ends at "tip", which is no role'
    assert refused.value.hint == "Known roles: trainer, aggregator, top"
    path.write_text(SCHEMA.format(groups='"a"').replace('{"name": "top"}', '{"name": "top"}, {"name": "root"}').replace(
        '"channels": [', '"channels": [{"name": "last", "pair": ["top", "root"]},'))  # fmt: skip
    assert len(trees.planned(plan(tree=f"tag = '{path}'")).plan.trees) == 1, "it plans no middle nodes"
    with pytest.raises(PlanError, match="cannot read the schema"):
        trees.scenario(plan(tree=f"tag = '{tmp_path / 'none.json'}'"))


@pytest.mark.parametrize(
    ("job", "nodes", "cause"),
    [
        ("goal = 21", "", "job.goal is 21, and must be from 1 to 20"),
        ("", "groups = ['a', 'b', 'c', 'd', 'e', 'f']", "6 groups for 5 nodes"),
    ],
)
def test_what_cannot_be_is_refused(job: str, nodes: str, cause: str) -> None:
    with pytest.raises(ThalwegError, match=cause):
        trees.scenario(plan(job=job, nodes=nodes))
    with pytest.raises(PlanError, match="known only when it runs"):
        trees.scenario(Plan.of({"app": "my_app:App"}))
