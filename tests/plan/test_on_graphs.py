"""Plans of jobs on a graph: their keys, and which other keys are refused."""

from __future__ import annotations

from typing import Any

import pytest

from thalweg.errors import PlanError
from thalweg.plan import Plan
from thalweg.plan.on_graphs import schedule_of


def ring(**overrides: Any) -> Plan:
    return Plan.of({"job": {"graph": "ring"}}).merge({key.replace("__", "."): v for key, v in overrides.items()})


def test_a_graph_names_its_algorithm_and_its_nodes() -> None:
    plan = ring(job__clients=3)
    assert plan.algorithm.name == "dpsgd"
    assert plan.members == ["node-1", "node-2", "node-3"]
    assert (plan.wait, plan.weights) == ("all", "metropolis")
    assert Plan.loads(plan.to_toml()) == plan
    steps = plan.merge({"training.local_steps": 3})
    assert Plan.loads(steps.to_toml()) == steps
    assert Plan.of({}).members == ["client-1", "client-2", "client-3", "client-4"]
    assert Plan.of({}).merge({"job.graph": "ring"}).algorithm.name == "dpsgd"
    assert Plan.of({"algorithm": {"name": "dpsgd"}, "job": {"graph": "ring"}}).algorithm.name == "dpsgd"


def test_nodes_that_are_listed_need_not_be_counted() -> None:
    plan = Plan.loads("[job]\ngraph = 'ring'\n[hosts.nodes]\nanna = '10.0.0.1:7070'\nberta = '10.0.0.2:7071'")
    assert plan.job.clients == 2
    assert plan.members == ["anna", "berta"]


def test_an_algorithm_of_graphs_needs_one() -> None:
    with pytest.raises(PlanError, match="dpsgd needs a graph"):
        Plan.of({"algorithm": {"name": "dpsgd"}})


@pytest.mark.parametrize(
    ("said", "cause", "hint"),
    [
        ({"job.graph": "rnig"}, "unknown graph 'rnig'", "Did you mean 'ring'?"),
        ({"job.graph": "3-regular", "job.clients": 5}, "cannot be 3-regular", "even number"),
        ({"job.clients": 1}, "nobody to exchange with", "two nodes"),
        ({"job.deadline": 1.0}, "job.wait is all, which no deadline ends", "Remove job.deadline"),
        ({"job.deadline": 1.0, "job.wait": "none"}, "job.wait is none", "job.wait = 'deadline'"),
        ({"job.wait": "first-chunk"}, "needs a deadline", "Give job.deadline"),
        ({"algorithm.name": "choco", "job.share": 0.5}, "differences of whole models", "Remove job.share"),
        ({"job.exchange": "segments"}, "needs job.graph = full, and it is ring", "which is then auto"),
        (
            {"job.graph": "full", "job.exchange": "segments", "job.wait": "none"},
            "needs job.wait = all",
            "Change job.wait",
        ),
        (
            {"job.graph": "full", "job.exchange": "segments", "aggregation.weights": "symmetric"},
            "needs aggregation.weights = metropolis or renormalise",
            "Change aggregation.weights",
        ),
        (
            {"job.graph": "full", "job.exchange": "segments", "layers.compress": {"format": "f16"}},
            "needs compression = none",
            "Change compression",
        ),
        ({"algorithm.name": "fedavg"}, "cannot have the algorithm fedavg", "which is then dpsgd"),
        (
            {"job.graph": "one-peer", "aggregation.weights": "symmetric"},
            "models are sent one way",
            "Take metropolis or renormalise",
        ),
        ({"hosts.nodes": {"a": "h:1"}, "job.clients": 2}, "names 1 nodes where job.clients is 2", "leave job.clients"),
        ({"hosts.nodes": {"a": "h:1", "b": "h"}, "job.clients": 2}, "has 'h' for b", "10.0.0.7:7070"),
        ({"hosts.nodes": {"a": "h:1", "b": "tcp://h:1"}, "job.clients": 2}, "has 'tcp://h:1' for b", "10.0.0.7:7070"),
        ({"transport.url": "tcp://127.0.0.1:7070"}, "a port of its own", "Give transport.url = 'tcp'"),
        ({"training.local_steps": 3, "training.local_epochs": 2}, "both say how long", "Remove one"),
        ({"stress.parties": ["server"], "stress.cpu": 50}, "stress.parties names 'server'", "Known: node-1 to node-4"),
    ],
)
def test_what_cannot_be_together_is_refused(said: dict[str, Any], cause: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        ring(**said)
    assert cause in caught.value.cause
    assert hint in caught.value.hint


def test_nodes_of_a_full_graph_exchange_by_segments_where_that_can_be() -> None:
    assert (ring().exchange, ring(job__graph="full").exchange) == ("whole", "auto")
    assert ring(job__graph="full", job__exchange="segments").exchange == "segments"
    assert ring(job__graph="full", job__exchange="whole").exchange == "whole"


def test_waiting_with_and_without_a_deadline() -> None:
    assert ring(job__wait="deadline").job.deadline is None
    assert ring(job__wait="deadline", job__deadline=0.4).job.deadline == 0.4
    assert ring(job__wait="first-chunk", job__deadline=0.4).wait == "first-chunk"


@pytest.mark.parametrize(
    ("every", "tested"), [(None, [10]), (0, []), (1, list(range(1, 11))), (4, [4, 8, 10]), (20, [10])]
)
def test_models_are_tested_after_the_last_iteration_and_every_so_many(every: int | None, tested: list[int]) -> None:
    plan = ring(job__rounds=10, job__test_every=every)
    assert [number for number in range(1, 11) if plan.tests(number)] == tested


def test_a_payload_is_not_tested() -> None:
    assert not ring(model__name="payload:4KiB", job__rounds=1).tests(1)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ({"job.graph": "random:0.0001", "job.clients": 40}, "none of 1000 graphs"),
    ],
)
def test_what_the_core_cannot_do_is_refused_before_a_run(said: dict[str, Any], cause: str) -> None:
    with pytest.raises(PlanError, match=cause):
        schedule_of(ring(**said))


def test_the_graph_of_a_plan_is_drawn_by_its_seed() -> None:
    one, other = (schedule_of(ring(job__graph="3-regular", job__clients=16, job__seed=seed)) for seed in (1, 2))
    again = schedule_of(ring(job__graph="3-regular", job__clients=16, job__seed=1, aggregation__weights="paper"))
    assert one.links == again.links != other.links
    assert one.digest() == again.digest() != other.digest()
    with pytest.raises(PlanError, match="has no graph"):
        schedule_of(Plan.of({}))


def test_nodes_compare_what_they_must_have_alike() -> None:
    plan = ring()
    assert plan.digest() == ring(data__root="/elsewhere", training__threads=3, job__test_every=2).digest()
    for key, value in {"job.seed": 1, "job.rounds": 9, "training.batch": 8, "model.name": "lenet"}.items():
        assert plan.merge({key: value}).digest() != plan.digest()


def test_a_file_is_looked_at_when_it_runs() -> None:
    assert ring(job__graph="file:somewhere/else.edges").job.graph == "file:somewhere/else.edges"
