"""Engines that start a tree's nodes: their settings and their messages. tests/e2e/test_ray.py tests Ray itself."""

from __future__ import annotations

import json
import socket
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from thalweg import wire
from thalweg.errors import LinkError, PlanError, RoundError
from thalweg.job.common.messages import Report
from thalweg.job.tree.engines import Local, by_ray, engine_of, ray_actor, ray_driver, require
from thalweg.job.tree.engines.ray_actor import NodeActor
from thalweg.job.tree.order import NodeOrder
from thalweg.plan import Plan
from thalweg.plan.options import CoreOptions
from thalweg.sections.trees import NodesSection
from thalweg.transports.links import Trust


def plan(engine: str) -> Plan:
    return Plan.of({"aggregation": {"shape": "tree"}, "nodes": {"count": 2, "engine": engine}})


def installed(monkeypatch: pytest.MonkeyPatch, release: str | None) -> None:
    def found(_name: str) -> str:
        if release is None:
            raise PackageNotFoundError
        return release

    monkeypatch.setattr(by_ray, "version", found)


def test_nodes_are_local_unless_ray_is_asked_for(tmp_path: Path) -> None:
    made = engine_of(plan("local"), tmp_path / "log.txt", lambda *_: None, lambda _: None)
    assert isinstance(made, Local)
    assert made.facts() == {"name": "local"}
    require(plan("local"))


class Unfinished:
    """Makes orders with an address that is none. A process that gets such an order ends at once."""

    def of(self, name: str, number: int) -> NodeOrder:
        del number
        return NodeOrder(name=name, url="nowhere", listen="nowhere", options={}, trust=Trust())


def test_a_local_node_is_started_again_a_few_times(tmp_path: Path) -> None:
    ended: Queue[str] = Queue()
    notes: list[str] = []
    local = Local(tmp_path / "log.txt", lambda name, _: ended.put(name), notes.append)
    local.start(["node-0"], Unfinished())
    for _ in range(3):
        assert ended.get(timeout=60) == "node-0"
        assert not local.is_over("node-0")
        assert local.restart("node-0")
        assert not local.restart("another")
    ended.get(timeout=60)
    assert not local.restart("node-0"), "it cannot live here"
    assert local.is_over("node-0")
    assert not local.is_over("another")
    assert notes == ["starting node-0 again"] * 3
    local.stop(grace=0.0)


def test_a_local_node_is_not_started_again_if_the_plan_says_so(tmp_path: Path) -> None:
    ended: Queue[str] = Queue()
    plan_without_restarts = plan("local").merge({"nodes.restarts": 0})
    local = engine_of(plan_without_restarts, tmp_path / "log.txt", lambda name, _: ended.put(name), lambda _: None)
    local.start(["node-0"], Unfinished())
    assert ended.get(timeout=60) == "node-0"
    assert not local.restart("node-0")
    assert local.is_over("node-0")
    local.stop(grace=0.0)


@pytest.mark.parametrize(("release", "said"), [(None, "Ray is not installed"), ("2.9.3", "needs 2.52 or newer")])
def test_a_ray_that_is_missing_or_old_is_named(monkeypatch: pytest.MonkeyPatch, release: str | None, said: str) -> None:
    installed(monkeypatch, release)
    with pytest.raises(PlanError, match=said) as caught:
        require(plan("ray"))
    assert "pip install 'thalweg[ray]'" in caught.value.hint
    installed(monkeypatch, "2.60.0")
    require(plan("ray"))


class Told:
    """A run's Ray engine, and the notes and ends of nodes that it reports to the run."""

    def __init__(self, folder: Path) -> None:
        self.lost: list[tuple[str, str]] = []
        self.notes: list[str] = []
        lost, note = lambda name, why: self.lost.append((name, why)), self.notes.append
        self.ray = by_ray.Ray(NodesSection(engine="ray"), folder / "log.txt", lost, note)

    def hears(self, what: str, node: str | None = None, **facts: Any) -> None:
        self.ray._received("ray", {"say": what, "node": node, **facts})


def test_the_record_says_where_ray_has_put_nodes(tmp_path: Path) -> None:
    heard = Told(tmp_path)
    heard.hears("note", text="waiting")
    heard.hears("placed", "node-0", place={"address": "10.0.0.5", "ray_node": "0123456789ab"})
    assert heard.notes == ["waiting", "node-0 is on 10.0.0.5, Ray node 01234567"]
    assert heard.ray.facts()["nodes"] == {"node-0": {"address": "10.0.0.5", "ray_node": "0123456789ab"}}
    heard.hears("ended", "node-0", report=vars(Report(1.0)))
    heard.ray.check()
    assert (heard.ray.reports(), heard.lost) == ({"node-0": Report(1.0)}, [])


def test_a_node_that_ray_cannot_start_is_lost_with_the_reason(tmp_path: Path) -> None:
    heard = Told(tmp_path)
    error = {"cause": "no such thalweg", "hint": "Install it"}
    heard.hears("ended", "node-0", report={**vars(Report()), "error": error})
    assert heard.lost == [("node-0", "no such thalweg")]
    assert heard.ray.is_over("node-0")
    assert not heard.ray.is_over("node-1")
    with pytest.raises(RoundError, match="node-0 could not take part: no such thalweg"):
        heard.ray.check()


def test_if_rays_process_ends_all_nodes_that_it_has_started_are_lost(tmp_path: Path) -> None:
    heard = Told(tmp_path)
    heard.hears("placed", "node-0", place={"address": "10.0.0.5", "ray_node": "01"})
    heard.hears("placed", "node-1", place={"address": "10.0.0.6", "ray_node": "02"})
    heard.hears("ended", "node-1", report=vars(Report()))
    heard.ray._ended("ray", "killed by signal 9")
    assert heard.lost == [("node-0", "Ray's process killed by signal 9")]


def test_a_machine_with_another_release_says_so() -> None:
    order = NodeOrder(name="node-0", url="", listen="", options={}, trust=Trust())
    said = json.loads(NodeActor(wire.encode(order), "0.0.1").serve())
    assert said["error"]["cause"] == f"its machine has thalweg {version('thalweg')}, and the run 0.0.1"


def test_a_node_that_cannot_join_has_last_words() -> None:
    url, listen = "tcp://127.0.0.1:1", "tcp://127.0.0.1:0"
    options: CoreOptions = {"transport": {}, "timeout": 0.1}
    order = NodeOrder(name="node-0", url=url, listen=listen, options=options, trust=Trust())
    said = json.loads(NodeActor(wire.encode(order), version("thalweg")).serve())
    assert "refused" in said["error"]["cause"]
    assert said["error"]["hint"]
    assert said["peak_rss_bytes"] > 0
    assert "node-0: connect" in said["log"], "what it said goes to the record's log"


def test_of_a_long_log_the_last_lines_are_left() -> None:
    with tempfile.TemporaryFile() as log:
        log.write(b"first\n" + b"line\n" * 2000 + b"last\n")
        left = ray_actor._tail(log)
    assert len(left) <= ray_actor.TAIL
    assert set(left.splitlines()) == {"line", "last"}


def test_a_cluster_that_nobody_answers_for_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        free = there.getsockname()[1]
        ray_driver._reach(f"127.0.0.1:{free}")
    with pytest.raises(LinkError, match=r"no Ray cluster answers at 127\.0\.0\.1:"):
        ray_driver._reach(f"127.0.0.1:{free}")
    ray_driver._reach("auto")  # Ray looks for the cluster itself


@pytest.mark.parametrize(
    ("url", "host", "there"),
    [
        ("tcp://127.0.0.1:0", "10.0.0.5", "tcp://10.0.0.5:0"),
        ("udp://0.0.0.0:7070", "10.0.0.5", "udp://10.0.0.5:7070"),
        ("tcp://[::]:0", "fd00::5", "tcp://[fd00::5]:0"),
    ],
)
def test_a_node_listens_at_its_machines_address(url: str, host: str, there: str) -> None:
    assert ray_driver._at(url, host) == there


def test_what_an_actor_raised_is_the_cause() -> None:
    exceptions = pytest.importorskip("ray.exceptions", reason="Ray is not installed: make test-extras")
    raised = exceptions.RayTaskError("serve", "Traceback ...", OSError("no space"), proctitle="", pid=1, ip="127.0.0.1")
    assert ray_driver._died(raised).cause == "OSError: no space"
    assert ray_driver._died(exceptions.WorkerCrashedError()).cause.startswith("The worker died unexpectedly")
