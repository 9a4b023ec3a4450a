"""A node's process is killed before it listens: the run continues, or reports the node, the signal and its log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from thalweg.errors import RoundError
from thalweg.job.common.fleet import Fleet
from thalweg.job.graph import run as on_graph
from thalweg.job.run import run
from thalweg.job.tree import engines
from thalweg.outcome import Entry
from thalweg.plan import Plan
from thalweg.record import Record
from thalweg.ui.progress import LineProgress

pytestmark = pytest.mark.e2e

Deaths = dict[str, list[str]]
Dying = Callable[[str, Deaths], None]
STEPS = {"graph": ["start", "here", "met"], "tree": ["start", "connected", "opening", "opened"]}


class Told(LineProgress):
    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def dying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dying:
    """Return a function that has nodes' processes killed at the steps that the test names."""
    of = {"graph": (on_graph, "thalweg.job.graph.node"), "tree": (engines, "thalweg.job.tree.node")}

    def arrange(shape: str, deaths: Deaths) -> None:
        module, program = of[shape]
        (tmp_path / "starts").mkdir()
        order = {"program": program, "folder": str(tmp_path / "starts"), "deaths": deaths}
        monkeypatch.setenv("MORTAL", json.dumps(order))
        monkeypatch.setattr(module, "PROGRAM", "tests.job.mortal")

    return arrange


def plan(shape: str, folder: Path, **nodes: Any) -> Plan:
    table: dict[str, Any] = {
        "job": {"clients": 4, "rounds": 2},
        "model": {"name": "payload:64KiB"},
        "record": {"folder": str(folder / "runs")},
    }
    if shape == "graph":
        table["job"]["graph"] = "ring"
    else:
        table |= {"aggregation": {"shape": "tree"}, "nodes": {"count": 2, **nodes}, "tree": {"placement": "worst-fit"}}
    return Plan.of(table)


def names_of(shape: str) -> list[str]:
    return [f"node-{place}" for place in (range(1, 5) if shape == "graph" else range(2))]


def rounds_of(folder: Path) -> list[Entry]:
    (record,) = (folder / "runs").iterdir()
    return list(Record(record).rounds())


def counted(row: Entry) -> int:
    return sum(client["state"] == "whole" for client in row["clients"])


@pytest.mark.parametrize("shape", ["graph", "tree"])
@pytest.mark.parametrize("seed", range(4))
def test_a_node_that_is_killed_before_it_is_open_is_started_again(
    dying: Dying, tmp_path: Path, shape: str, seed: int
) -> None:
    random = Random(seed)
    # A death at each step, and a node that is killed twice.
    deaths = [STEPS[shape][seed % len(STEPS[shape])], *random.choices(STEPS[shape], k=random.randrange(2))]
    dying(shape, {random.choice(names_of(shape)): deaths})
    heard = Told()
    run(plan(shape, tmp_path), heard)
    assert len(rounds_of(tmp_path)) == 2
    again = [note for note in heard.notes if note.startswith("starting node") or "starting all nodes again" in note]
    assert len(again) == len(deaths)
    if shape == "tree":
        assert all(counted(row) == 4 for row in rounds_of(tmp_path))


@pytest.mark.parametrize("death", ["start", "connected", "opening"])
def test_clients_of_a_tree_node_that_is_killed_too_often_get_another(dying: Dying, tmp_path: Path, death: str) -> None:
    dying("tree", {"node-1": [death, death]})
    heard = Told()
    run(plan("tree", tmp_path, restarts=1), heard)
    assert all(counted(row) == 4 for row in rounds_of(tmp_path))
    killed = "node-1 is gone: killed by signal 9 (SIGKILL)"
    assert heard.notes.count("starting node-1 again") == 1
    assert heard.notes.count(killed) == 2
    assert f"{killed}, before it was open; its clients get other nodes" in heard.notes


def test_a_tree_whose_only_nodes_are_killed_says_so(dying: Dying, tmp_path: Path) -> None:
    dying("tree", {"node-0": ["start"], "node-1": ["opening"]})
    with pytest.raises(RoundError, match=r"^node-\d is gone: killed by signal 9 \(SIGKILL\)") as caught:
        run(plan("tree", tmp_path, restarts=0), Told())
    assert "there is no other node" in caught.value.cause
    (record,) = (tmp_path / "runs").iterdir()
    assert str(record / "log.txt") in caught.value.hint


@pytest.mark.parametrize("death", STEPS["tree"])
@pytest.mark.parametrize("name", ["middle-1-0", "node-1"])
def test_a_node_of_a_tree_with_middle_nodes_is_started_again(
    dying: Dying, tmp_path: Path, death: str, name: str
) -> None:
    dying("tree", {name: [death]})
    heard = Told()
    run(plan("tree", tmp_path, count=4, middle=2).merge({"tree.top": "dedicated"}), heard)
    assert heard.notes.count(f"starting {name} again") == 1
    assert [counted(row) for row in rounds_of(tmp_path)] == [4, 4]


@pytest.mark.parametrize("name", ["middle-1-0", "node-1"])
def test_clients_below_middle_nodes_get_no_other_node(dying: Dying, tmp_path: Path, name: str) -> None:
    dying("tree", {name: ["opening"] * 2})
    with pytest.raises(RoundError, match="clients below middle nodes do not move") as caught:
        run(plan("tree", tmp_path, count=4, middle=2, restarts=1).merge({"tree.top": "dedicated"}), Told())
    assert caught.value.cause.startswith(f"{name} is gone: killed by signal 9 (SIGKILL), before it was open")
    (record,) = (tmp_path / "runs").iterdir()
    assert str(record / "log.txt") in caught.value.hint


def levels(folder: Path, **nodes: Any) -> Plan:
    """Return the plan of a tree with two middle nodes, whose rounds are long enough for nodes to come back."""
    tree = plan("tree", folder, count=4, middle=2, **nodes)
    return tree.merge({"tree.top": "dedicated", "job.rounds": 60, "training.compute": 0.1, "job.grace": 1.0})


def ports(folder: Path, name: str) -> list[str]:
    """Return the addresses where a node has listened, one for each time."""
    (record,) = (folder / "runs").iterdir()
    lines = (record / "log.txt").read_text().splitlines()
    return [line.partition(": listening on ")[2].split()[0] for line in lines if f" {name}: listening on " in line]


def test_a_node_goes_on_while_its_middle_node_is_started_again_after_it(dying: Dying, tmp_path: Path) -> None:
    dying("tree", {"node-0": ["round 2"], "middle-1-0": ["after node-0.1.round"]})
    heard = Told()
    run(levels(tmp_path), heard)
    assert [note for note in heard.notes if note.startswith("starting ") and note.endswith(" again")] == [
        "starting node-0 again",
        "starting middle-1-0 again",
    ]
    assert counted(rounds_of(tmp_path)[-1]) == 4
    # It listened once in each of its two processes, and clients found it.
    first, second = ports(tmp_path, "node-0")
    assert first == second


def test_a_node_and_its_middle_node_that_are_killed_together_come_back(dying: Dying, tmp_path: Path) -> None:
    dying("tree", {"node-0": ["round 2 with middle-1-0"]})
    run(levels(tmp_path), Told())
    assert counted(rounds_of(tmp_path)[-1]) == 4
    first, second = ports(tmp_path, "node-0")
    assert first == second


def test_a_middle_node_comes_back_without_a_node_that_is_gone_for_good(dying: Dying, tmp_path: Path) -> None:
    dying("tree", {"node-0": ["round 2", "round 3"], "middle-1-0": ["after node-0.1.died"]})
    heard = Told()
    run(levels(tmp_path, restarts=1), heard)
    lost = "node-0 does not come back. Its clients are lost, because clients below middle nodes do not move"
    assert heard.notes.count(lost) == 1
    assert "middle-1-0 goes on without node-0" in heard.notes
    assert "middle-1-0 is back" in heard.notes
    assert counted(rounds_of(tmp_path)[-1]) == 3


@pytest.mark.parametrize("name", ["middle-1-0", "node-0"])
def test_a_run_does_not_wait_for_what_is_below_a_node_that_is_gone_for_good(
    dying: Dying, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    dying("tree", {name: ["round 2"]})
    ended: list[list[str]] = []
    end = Fleet.end

    def ends(fleet: Fleet[Any], names: list[str]) -> None:
        ended.append(list(names))
        end(fleet, names)

    monkeypatch.setattr(Fleet, "end", ends)
    heard = Told()
    run(levels(tmp_path, restarts=0).merge({"job.rounds": 4}), heard)
    cut_off = [["node-0", "node-1"], ["client-1", "client-2"]] if name == "middle-1-0" else [[], ["client-1"]]
    assert ended == cut_off
    lost = f"{name} does not come back. Its clients are lost, because clients below middle nodes do not move"
    assert heard.notes.count(lost) == 1
    assert not any(note.startswith("starting node") and note.endswith(" again") for note in heard.notes)


APP = """
import os
import signal

import numpy as np


class App:
    def __init__(self, dead):
        self.dead = dead.split(",")

    def model(self):
        return {"w": np.zeros(10, np.float32)}

    def client_data(self, name, index, clients, seed):
        if name in self.dead:
            os.kill(os.getpid(), signal.SIGKILL)

    def train(self, model, data, config):
        model["w"] += 1
        return 1, {}
"""


def star(folder: Path, dead: list[str], enough: int | None) -> Plan:
    # A process loads a module only once, so each test of this file has a module of its own.
    file = folder / f"mortal_{folder.name}.py"
    file.write_text(APP)
    app = {"object": f"{file}:App", "options": {"dead": ",".join(dead)}}
    job = {"clients": 4, "rounds": 2} | ({} if enough is None else {"enough": enough})
    return Plan.of({"job": job, "model": {}, "app": app, "record": {"folder": str(folder / "runs")}})


@pytest.mark.parametrize("seed", range(3))
def test_a_star_goes_on_without_clients_that_are_killed_before_they_join(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    dead = sorted(random.sample([f"client-{n}" for n in range(1, 5)], random.randint(1, 2)))
    heard = Told()
    run(star(tmp_path, dead, enough=2), heard)
    rows = rounds_of(tmp_path)
    assert [counted(row) for row in rows] == [4 - len(dead)] * 2
    whys = "; ".join(f"{name} is missing: killed by signal 9 (SIGKILL)" for name in dead)
    said = f"going on with {4 - len(dead)} of 4 clients: {whys}"
    assert said in heard.notes
    (record,) = (tmp_path / "runs").iterdir()
    assert said in (record / "log.txt").read_text()
    assert Record(record).manifest["status"] == "complete"


@pytest.mark.parametrize("enough", [None, 4, 3])
def test_a_star_that_has_too_few_clients_says_who_is_missing(tmp_path: Path, enough: int | None) -> None:
    dead = ["client-2", "client-3"]
    with pytest.raises(RoundError, match=r"^client-[23] could not take part: killed by signal 9 \(SIGKILL\)"):
        run(star(tmp_path, dead, enough), Told())


@pytest.mark.parametrize("death", STEPS["graph"])
def test_a_graph_of_which_a_node_is_killed_too_often_says_so(dying: Dying, tmp_path: Path, death: str) -> None:
    dying("graph", {"node-3": [death] * (on_graph.RESTARTS + 1)})
    why = r"^node-3 could not take part: killed by signal 9 \(SIGKILL\), 4 times"
    with pytest.raises(RoundError, match=why) as caught:
        run(plan("graph", tmp_path), Told())
    (record,) = (tmp_path / "runs").iterdir()
    assert str(record / "log.txt") in caught.value.hint
