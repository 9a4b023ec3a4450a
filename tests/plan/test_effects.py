"""Every key of a plan has an effect in each shape of job, or is refused there with the reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pytest

from thalweg import plan as plans
from thalweg.errors import PlanError
from thalweg.plan import Plan, baselines, check_transport, effects
from thalweg.plan.options import client_options, node_options, server_options, task_options
from thalweg.sections.marks import Key, keys
from thalweg.transports import registry
from thalweg.transports.links import Trust
from thalweg.trees import live
from thalweg.ui import strict_json

PACKAGE: Final = Path(plans.__file__).parents[1]
# A job of each shape.
BASES: Final[dict[str, dict[str, Any]]] = {
    "star": {},
    "tree": {"aggregation": {"shape": "tree"}, "tree": {"split": "clients"}, "nodes": {"count": 1}},
    "nodes": {
        "aggregation": {"shape": "tree"},
        "tree": {"top": "dedicated", "split": "clients"},
        "nodes": {"count": 2},
    },
    "graph": {"job": {"graph": "ring"}},
    "flower": {"app": {"object": "flower:somewhere"}},
}
# For each line of the table of effects, a value other than the default. tests/network tests the effects on links.
VALUES: Final[dict[str, Any]] = {
    "job.rounds": 7,
    "job.clients": 6,
    "job.graph": "full",
    "job.wait": "deadline",
    "job.ahead": 2,
    "job.share": 0.5,
    "job.exchange": "whole",
    "job.test_every": 5,
    "job.evaluate": "both",
    "job.choose": 2,
    "job.seed": 3,
    "job.enough": 2,
    "job.goal": 2,
    "job.deadline": 3.0,
    "job.grace": 1.0,
    "job.outage": 60.0,
    "job.liveness": 20.0,
    "app": {"object": "here:App"},
    "model.name": "lenet",
    "model.tensors": ["*.weight"],
    "data.name": "digits",
    "data.partition": "contiguous",
    "data.root": "somewhere",
    "data.samples": 100,
    "data.test_samples": 100,
    "training.batch": 10,
    "training.learning_rate": 0.5,
    "training.momentum": 0.5,
    "training.decay_round": 5,
    "training.decay": 0.5,
    "training.local_epochs": 2,
    "training.local_steps": 3,
    "training.threads": 2,
    "training.compute": 1.0,
    "training.compute_load": "cpu",
    "algorithm.name": "choco",
    "algorithm.gamma": 0.5,
    "algorithm.server_learning_rate": 0.5,
    "algorithm.server_momentum": 0.5,
    "algorithm.nesterov": True,
    "algorithm.beta1": 0.5,
    "algorithm.beta2": 0.5,
    "algorithm.tau": 0.5,
    "algorithm.mu": 0.5,
    "algorithm.q": 0.5,
    "algorithm.lipschitz": 5.0,
    "transport.url": "udp",
    "transport.congestion": "reno",
    "transport.client_congestion": ["reno"],
    "transport.streams": 2,
    "transport.send_buffer": 100_000,
    "transport.receive_buffer": 100_000,
    "transport.fanout": "sequential",
    "transport.gather": "in-order",
    "transport.chunk": 64_000,
    "transport.options": {"close_percent": 90},
    "aggregation.shape": "tree",
    "aggregation.partial": "keep",
    "aggregation.stale": 2,
    "aggregation.precision": "f64",
    "aggregation.deterministic": True,
    "aggregation.weights": "renormalise",
    "aggregation.staging": 1_000_000,
    "repair.resend": False,
    "repair.policy": "zero",
    "repair.spread": True,
    "repair.critical": ["*.bias"],
    "repair.budgets": {"*.bias": 0.5},
    "repair.refuse": {"*.bias": 0.5},
    "security.tls": "on",
    "security.clients": "certificate",
    "security.pki": "somewhere",
    "security.token_file": "somewhere",
    "security.login_file": "somewhere",
    "layers.throttle": 1_000_000,
    "layers.fault": {"loss": 0.1},
    "layers.seal": {"cipher": "chacha20-poly1305"},
    "layers.compress": {"format": "int8"},
    "compression.scheme": "int8",
    "compression.down": "int4",
    "hosts.server": "10.0.0.1:7070",
    "hosts.clients": {"a": "10.0.0.2", "b": "10.0.0.3"},
    "hosts.nodes": {"a": "10.0.0.1:7070", "b": "10.0.0.2:7070"},
    "network.broker": {"rate": 1000},
    "network.time_scale": 0.5,
    "network.limiter_burst": 10_000,
    "stress.cpu": 50,
    "stress.cpu_quota": 0.5,
    "stress.network": 1_000_000,
    "stress.network_mode": "clients",
    "stress.parties": ["client-1"],
    "record.folder": "elsewhere",
    "record.checkpoint_every": 3,
    "record.checkpoint_to": "elsewhere",
    "record.metrics": "0",
    "record.track": ["tensorboard:here"],
    "tree.system": "sf",
    "tree.placement": "first-fit",
    "tree.split": "ranges",
    "tree.top": "sharded",
    "tree.timing": "lazy",
    "tree.routes": "node",
    "tree.scaling": "fixed",
    "tree.reuse": True,
    "tree.start": "cold",
    "tree.container_start": 1.0,
    "tree.data_plane": "sockets",
    "tree.side_process": True,
    "tree.levels": "flat",
    "tree.keep": False,
    "tree.inputs": 3,
    "tree.workers": 3,
    "tree.history": 0.1,
    "tree.every": 1.0,
    "tree.silence": 1.0,
    "tree.between": 1.0,
    "tree.spread": 1.0,
    "tree.tag": "schema.json",
    "tree.costs": {"fold": 1},
    "tree.autoscaler": {"tick": 1.0},
    "nodes.count": 3,
    "nodes.middle": [1],
    "nodes.capacity": 3,
    "nodes.cores": 3,
    "nodes.link": 1_000_000,
    "nodes.client_link": 1_000_000,
    "nodes.restarts": 1,
    "nodes.away": 1.0,
    "nodes.engine": "ray",
    "nodes.ray_address": "auto",
    "nodes.ray_wait": 1.0,
    "nodes.groups": ["west"],
}
# Other keys that a key needs to be accepted, in all jobs or in one.
# For each setting of an algorithm, one that has it; and the shapes of jobs with a server.
OF: Final = {
    "server_learning_rate": "fedadam",
    "server_momentum": "fednova",
    "nesterov": "fedavgm",
    "beta1": "fedadam",
    "beta2": "fedyogi",
    "tau": "fedadagrad",
    "mu": "fedprox",
    "q": "qfedavg",
    "lipschitz": "qfedavg",
}
SERVED: Final = ("star", "tree", "nodes")
BESIDE: Final[dict[str, dict[str, Any]]] = {
    "job.deadline, graph": {"job.wait": "deadline"},
    "stress.parties, graph": {"stress.cpu": 50, "stress.parties": ["node-1"]},
    "algorithm.gamma, graph": {"algorithm.name": "choco"},
    **{f"algorithm.{key}, {job}": {"algorithm.name": name} for key, name in OF.items() for job in SERVED},
    "transport.options": {"transport.url": "ltp"},
    "training.compute": {"model.name": "payload:1MiB"},
    "training.compute_load": {"model.name": "payload:1MiB", "training.compute": 1.0},
    "repair.policy": {"repair.resend": False},
    "repair.spread": {"repair.resend": False, "tree.top": None},
    "layers.seal": {"security.tls": "on"},
    "compression.down": {"compression.scheme": "int8"},
    "network.broker": {"transport.url": "mqtt", "network.rate": 1_000_000},
    "network.time_scale": {"network.changes": [{"at": 1.0, "rate": 1000}]},
    "network.limiter_burst": {"network.limiter": "device", "network.rate": 1_000_000},
    "stress.network_mode": {"stress.network": 1_000_000},
    "stress.parties": {"stress.cpu": 50},
    "tree.autoscaler": {"tree.scaling": "knative"},
    "tree.container_start": {"tree.start": "cold"},
    "nodes.cores": {"nodes.engine": "ray"},
    "nodes.link": {"network.rate": 1_000_000},
    "nodes.client_link": {"network.rate": 1_000_000},
    "nodes.ray_address": {"nodes.engine": "ray"},
    "nodes.ray_wait": {"nodes.engine": "ray"},
}

# In these jobs Python itself uses these keys and does not pass them to the core: it counts nodes and asks for replies.
OUTSIDE: Final = {("job.clients", "graph"), ("job.clients", "flower"), ("repair.resend", "flower")}
KEYS: Final = {key.path: key for key in keys(Plan)}


def lines_of(path: str) -> list[str]:
    """Return the lines of a key: its own line, or the line of a section around it."""
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1) if ".".join(parts[:end]) in effects.EFFECTS]


def is_section(key: Key) -> bool:
    """Whether a key is a section, which has keys of its own."""
    return any(other.startswith(f"{key.path}.") for other in KEYS)


def made(job: str, said: dict[str, Any]) -> Plan:
    """A job of this shape that a run accepts. Raises PlanError."""
    plan = Plan.of(BASES[job]).merge(said)
    check_transport(plan, registry.transports())
    return plan


def beside(path: str, job: str) -> dict[str, Any]:
    return BESIDE.get(f"{path}, {job}", BESIDE.get(path, {}))


def value_of(path: str, job: str) -> Any:
    return "fedadam" if path == "algorithm.name" and job != "graph" else VALUES[path]


def told(plan: Plan, job: str) -> str:
    """Return the core's options for a plan."""
    if job == "graph":
        every: Sequence[Mapping[str, object]] = [node_options(plan, Trust(), number=1, job=1, digests={})]
    elif job == "flower":
        every = [task_options(plan, Trust()), client_options(plan, Trust(), seed=1)]
    else:
        every = [server_options(plan, Trust()) | live.options(plan), client_options(plan, Trust(), seed=1)]
    return strict_json.dumps(
        [{key: value for key, value in one.items() if key != "job"} for one in every], sort_keys=True
    )


@lru_cache
def words_read() -> frozenset[str]:
    """Return all names of attributes and all strings in the package's code, except in the modules that define keys."""
    words: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        if path.is_relative_to(PACKAGE / "sections") or path == Path(effects.__file__):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            words |= {node.attr} if isinstance(node, ast.Attribute) else set()
            words |= {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()
    return frozenset(words)


def cases(*, with_effect: bool) -> Iterator[tuple[str, str]]:
    """Return pairs of a key and a job, without the keys that decide the shape of the job."""
    for path in VALUES.keys() - {"job.graph", "aggregation.shape", "app"}:
        without = effects.EFFECTS[path].without
        yield from ((path, job) for job in effects.JOBS if (job not in without) is with_effect)


@pytest.fixture(autouse=True)
def any_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys have the same effects in builds without baselines, which refuse some values."""
    monkeypatch.setattr(baselines, "check", lambda _: None)


def test_every_key_has_one_line() -> None:
    missing = [path for path, key in KEYS.items() if not is_section(key) and len(lines_of(path)) != 1]
    assert missing == [], "say in thalweg.plan.effects in which jobs they have an effect"
    assert [path for path in effects.EFFECTS if path not in {key.path for key in keys(Plan)}] == []
    assert set(VALUES) == set(effects.EFFECTS) - {f"network.{key}" for key in effects.LINKS}


def test_lines_name_shapes_that_there_are() -> None:
    assert {job for line in effects.EFFECTS.values() for job in line.without} == set(effects.JOBS)
    assert {job: effects.job_of(Plan.of(base)) for job, base in BASES.items()} == {job: job for job in effects.JOBS}


@pytest.mark.parametrize(("path", "job"), sorted(cases(with_effect=False)))
def test_a_key_without_effect_is_refused(path: str, job: str) -> None:
    with pytest.raises(PlanError) as caught:
        made(job, {**beside(path, job), path: value_of(path, job)})
    section = path.partition(".")[0]
    # Some keys are refused because their whole section is, or because there is an app.
    wanted = (
        f"{path} has no effect {effects.IN[job]}: {effects.EFFECTS[path].without[job]}",
        f"[{section}]",
        "beside an app",
    )
    assert any(words in caught.value.cause for words in wanted), caught.value.cause
    assert "emove" in caught.value.hint


@pytest.mark.parametrize(("path", "job"), sorted(cases(with_effect=True)))
def test_a_key_that_is_accepted_has_an_effect(path: str, job: str) -> None:
    other = beside(path, job)
    value = value_of(path, job)
    plan, without = (
        made(job, {path: value, **other}),
        made(job, {key: other[key] for key in other if key != path}),
    )
    in_core = any(
        KEYS[line].core is not None for line in (path, *lines_of(path), path.rpartition(".")[0]) if line in KEYS
    )
    if in_core and (path, job) not in OUTSIDE:
        assert told(plan, job) != told(without, job)
    else:
        assert path.rpartition(".")[2] in words_read()


@pytest.mark.parametrize(
    ("said", "path", "why"),
    [
        ({"network.broker": {}}, "network.broker", "the transport goes through no broker"),
        ({"network.rate": 1000, "network.time_scale": 0.5}, "network.time_scale", "no changes and no trace"),
        ({"network.rate": 1000, "network.limiter_burst": 10_000}, "network.limiter_burst", "network.limiter is 'path'"),
        (
            {"model.name": "payload:1MiB", "training.compute_load": "cpu"},
            "training.compute_load",
            "does not say how long",
        ),
        ({"model.name": "payload:1MiB", "job.evaluate": "both"}, "job.evaluate", "a payload is not trained"),
        ({"stress.cpu": 50, "stress.network_mode": "clients"}, "stress.network_mode", "stress.network does not say"),
        (
            {"record.checkpoint_to": "x", "record.checkpoint_every": 0},
            "record.checkpoint_to",
            "record.checkpoint_every is 0",
        ),
        ({"network.clock": "virtual", "record.metrics": "0"}, "record.metrics", "in virtual time"),
        ({"algorithm.name": "fedavgm", "algorithm.q": 1.0}, "algorithm.q", "it is for 'qfedavg', the value"),
        ({"aggregation.shape": "tree", "tree.scaling": "hierarchy"}, "tree.scaling", "it is for leaves"),
        ({"aggregation.shape": "tree", "tree.inputs": 4}, "tree.inputs", "it is for leaves"),
        (
            {"aggregation.shape": "tree", "tree.autoscaler": {"tick": 1.0}},
            "tree.autoscaler",
            "tree.scaling = 'knative'",
        ),
        (
            {"aggregation.shape": "tree", "tree.top": "dedicated", "nodes.middle": [1], "tree.every": 1.0},
            "tree.every",
            "without middle nodes",
        ),
        ({"aggregation.shape": "tree", "nodes.count": 2, "nodes.cores": 4}, "nodes.cores", "nodes.engine is 'local'"),
    ],
)
def test_a_key_that_needs_another_one_says_so(said: dict[str, Any], path: str, why: str) -> None:
    with pytest.raises(PlanError, match=f"{path} has no effect") as caught:
        made("star", said)
    assert why in caught.value.cause
    assert caught.value.hint == f"Remove {path}"


def test_all_of_them_are_named_at_once() -> None:
    with pytest.raises(PlanError) as caught:
        made("flower", {"job.rounds": 3, "job.choose": 2, "record.checkpoint_every": 2})
    assert caught.value.cause.count("has no effect for a Flower app") == 3
    assert caught.value.hint == "Remove job.rounds; Remove job.choose; Remove record.checkpoint_every"


def test_the_error_names_what_gives_a_key_an_effect() -> None:
    with pytest.raises(PlanError) as caught:
        Plan.of({}).merge({"job.wait": "none"})
    assert caught.value.hint == "Remove job.wait, or give job.graph"
    with pytest.raises(PlanError) as caught:
        made("tree", {"tree.placement": "first-fit"})
    assert caught.value.hint == "Remove tree.placement, or take several nodes (--nodes)"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"job.goal": 9}, "job.goal is 9, and must be from 1 to"),
        ({"job.goal": 1, "job.enough": 2}, "job.goal is 1, and must be from 2 to"),
        ({"aggregation.stale": 1, "aggregation.partial": "keep"}, "a part of a late update already counts"),
        ({"job.goal": 1, "aggregation.partial": "keep"}, "job.goal says which whole updates count"),
        ({"aggregation.stale": 1, "algorithm.name": "fedadam"}, "the model with which the round began"),
    ],
)
def test_goals_and_late_updates_that_no_round_can_have_are_refused(said: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        made("star", said)
