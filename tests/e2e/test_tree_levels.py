"""``thalweg run`` with middle nodes: trees of three levels and more, from ``nodes.middle`` or a schema of Flame."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.conftest import Program, why_no_lab
from thalweg.outcome import Entry
from thalweg.record import Record
from thalweg.record.tables import read_table

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sys.platform != "linux", reason="workers share memory as Linux alone does"),
]

Run = Callable[..., Any]
Start = Callable[..., Program]

TREE: Final = ("--aggregation", "tree", "--top", "dedicated", "--placement", "worst-fit")
NODE: Final = "thalweg.job.tree.node"
# As users of Flame write it: clients of three groups, whose aggregators are in two countries.
SCHEMA: Final = {
    "name": "two countries",
    "roles": [
        {"name": "trainer", "isDataConsumer": True},
        {"name": "aggregator"},
        {"name": "country-aggregator"},
        {"name": "top-aggregator"},
    ],
    "channels": [
        {
            "name": "param-channel",
            "pair": ["trainer", "aggregator"],
            "groupBy": {"type": "tag", "value": ["default/us/west", "default/us/east", "default/uk/london"]},
        },
        {
            "name": "country-channel",
            "pair": ["aggregator", "country-aggregator"],
            "groupBy": {"type": "tag", "value": ["default/us", "default/uk"]},
        },
        {
            "name": "global-channel",
            "pair": ["country-aggregator", "top-aggregator"],
            "groupBy": {"type": "tag", "value": ["default"]},
        },
    ],
}


def counts_of(row: Entry) -> dict[str, int]:
    """Return how many updates of each of the root's own nodes count in a round."""
    fold = row["fold"]
    assert fold is not None
    assert "nodes" in fold
    return {node["node"]: node["counted"] for node in fold["nodes"]}


def test_trees_of_three_and_four_levels_have_the_bits_of_a_star(result: Run, tmp_path: Path) -> None:
    def trained(name: str, *options: str) -> tuple[bytes, dict[str, Any], Record]:
        base = ("--model", "lenet", "--data", "digits", "--clients", "5", "--rounds", "2", "--deterministic")
        done = result("run", *base, *options, "--record", name)
        record = Record(tmp_path / done["record"])
        return (record.path / "checkpoint.safetensors").read_bytes(), done, record

    star, _, _ = trained("star")
    nodes = (*TREE, "--nodes", "4", "--capacity", "2")
    three, done, record = trained("three", *nodes, "--middle-nodes", "2")
    assert three == star
    # Updates of nodes below middle nodes: each of four nodes has clients, also with a dedicated top.
    assert {one["node"]: one["clients"] for one in done["tree"]["nodes"]} == {
        "node-0": 2, "node-1": 1, "node-2": 1, "node-3": 1,
    }  # fmt: skip
    assert done["tree"]["workers"] == 4
    assert record.manifest["below"] == {"middle-1-0": ["node-0", "node-1"], "middle-1-1": ["node-2", "node-3"]}
    rows = list(record.rounds())
    assert [counts_of(row) for row in rows] == [{"middle-1-0": 3, "middle-1-1": 2}] * 2
    assert all(row["participants"] == 5 for row in done["rounds"])

    four, done, record = trained("four", *nodes, "--middle-nodes", "3", "--middle-nodes", "2")
    assert four == star
    assert record.manifest["below"] == {
        "middle-1-0": ["node-0", "node-1"],
        "middle-1-1": ["node-2"],
        "middle-1-2": ["node-3"],
        "middle-2-0": ["middle-1-0", "middle-1-1"],
        "middle-2-1": ["middle-1-2"],
    }
    assert [counts_of(row) for row in record.rounds()] == [{"middle-2-0": 4, "middle-2-1": 1}] * 2
    parties = {row["party"] for row in read_table(record.path, "parties")}
    assert parties == {"server", *(f"client-{n}" for n in range(1, 6)), *(f"node-{n}" for n in range(4)),
                       *record.manifest["below"]}  # fmt: skip


def test_a_schema_of_three_levels_of_aggregators_runs(result: Run, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA, indent=1))
    base = ("--model", "payload:64KiB", "--clients", "6", "--rounds", "2", "--split", "clients", "--plan-every", "1ms")
    done = result("run", *base, *TREE, "--nodes", "3", "--tag", "schema.json")
    assert [row["participants"] for row in done["rounds"]] == [6, 6]
    record = Record(tmp_path / done["record"])
    assert record.manifest["below"] == {"middle-1-0": ["node-0", "node-1"], "middle-1-1": ["node-2"]}
    assert [counts_of(row) for row in record.rounds()] == [{"middle-1-0": 4, "middle-1-1": 2}] * 2
    log = (record.path / "log.txt").read_text()
    assert "node-2 serves the group 'default/uk/london': client-3, client-6" in log
    assert "below middle-1-0: node-0, node-1" in log
    # The plans of nodes below middle nodes are in the record too.
    rows = (record.path / "workers.jsonl").read_text().splitlines()
    assert {json.loads(row)["node"] for row in rows} == {"node-0", "node-1", "node-2"}


def killed(start: Start, pick: int) -> tuple[str, list[int]]:
    """Kill a node in the third round of a tree; return its name, and the number of participants of each round.

    ``pick`` says which of the nodes' processes, in the order of their start. Clients compute in each round, so that
    rounds are long enough for this test to act before the last one.
    """
    base = ("run", "--model", "payload:64KiB", "--clients", "4", "--rounds", "60", "--compute", "100ms")
    run = start(*base, *TREE, "--nodes", "4", "--middle-nodes", "2", "--json")
    run.until("round 3/60")
    os.kill(run.children(NODE)[pick], signal.SIGKILL)
    name = run.until(" is gone: killed by signal 9").split()[0]
    run.until(f"starting {name} again")
    run.until(f"{name} is back")
    code, out, said = run.end()
    assert code == 0, said
    return name, [row["participants"] for row in json.loads(out)["rounds"]]


def test_a_middle_node_that_is_killed_comes_back_with_all_clients_below_it(start: Start) -> None:
    # The root starts first the nodes of its own.
    name, counts = killed(start, 1)
    assert name == "middle-1-1"
    assert counts[-1] == 4
    assert set(counts) <= {2, 4}


def test_a_node_below_a_middle_node_that_is_killed_comes_back_with_its_own_clients(start: Start) -> None:
    name, counts = killed(start, -1)
    assert name.startswith("node-")
    assert counts[-1] == 4
    assert set(counts) <= {3, 4}


@pytest.mark.parametrize(
    ("pick", "said", "left"),
    [(1, "middle-1-1 is gone", 2), (-1, "does not come back. Its clients are lost", 3)],
)
def test_clients_below_a_node_that_does_not_come_back_stay_there(start: Start, pick: int, said: str, left: int) -> None:
    base = ("run", "--model", "payload:64KiB", "--clients", "4", "--rounds", "20", "--compute", "100ms")
    run = start(*base, *TREE, "--nodes", "4", "--middle-nodes", "2", "--node-restarts", "0", "--json")
    run.until("round 3/20")
    os.kill(run.children(NODE)[pick], signal.SIGKILL)
    run.until(said)
    code, out, err = run.end()
    assert code == 0, err
    assert [row["participants"] for row in json.loads(out)["rounds"]][-1] == left


@pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")
def test_middle_nodes_have_hosts_and_links_of_their_own(result: Run, tmp_path: Path) -> None:
    base = ("--model", "payload:256KiB", "--clients", "4", "--rounds", "2", "--network", "rate=50mbit")
    (tmp_path / "job.toml").write_text('[nodes]\nlink = "100mbit"\n[aggregation]\nshape = "tree"\n')
    done = result("run", "job.toml", *base, *TREE, "--nodes", "4", "--middle-nodes", "2")
    assert done["emulation"] == "packet level"
    assert [row["participants"] for row in done["rounds"]] == [4, 4]
    crossed = {
        (row["link"], row["direction"]): row["bytes_out"] for row in read_table(tmp_path / done["record"], "links")
    }
    for middle in ("middle-1-0", "middle-1-1"):
        # In each of two rounds the model comes once from the root, and the sums of two nodes come from below.
        assert crossed[middle, "ba"] > 2 * 3 * done["update_bytes"]
        # The model goes to two nodes, and the sums to the root.
        assert crossed[middle, "ab"] > 2 * 3 * done["update_bytes"]


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (("--nodes", "2", "--middle-nodes", "1", "--top", "first-finished"), "only a dedicated top takes their sums"),
        (("--nodes", "2", "--middle-nodes", "1", "--goal", "3"), "with job.goal the root admits each update"),
        (("--nodes", "2", "--middle-nodes", "1", "--engine", "ray"), "Ray starts only nodes that have clients"),
        (("--nodes", "2", "--middle-nodes", "3"), "3 middle nodes on a level with 2 nodes below it"),
        (("--nodes", "3", "--middle-nodes", "2", "--tag", "schema.json"), "both say which middle nodes there are"),
        (("--nodes", "3", "--top", "sharded", "--tag", "schema.json"), "3 channels above the clients, which needs"),
        (("--nodes", "2", "--tag", "schema.json"), "3 groups for 2 nodes"),
    ],
)
def test_what_middle_nodes_cannot_have_is_refused_before_anything_starts(
    start: Start, tmp_path: Path, options: tuple[str, ...], cause: str
) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA, indent=1))
    base = ("run", "--model", "payload:64KiB", "--clients", "4", *TREE)
    code, out, err = start(*base, *options, "--record", "made").end()
    assert (code, out) == (2, "")
    assert cause in err
    assert "hint: " in err
    assert "starting" not in err
    assert not (tmp_path / "made").exists()


def test_a_server_starts_no_middle_nodes(start: Start, tmp_path: Path) -> None:
    plan = '[aggregation]\nshape = "tree"\n[tree]\ntop = "dedicated"\n[nodes]\ncount = 4\nmiddle = 2\n'
    (tmp_path / "job.toml").write_text(f'{plan}[model]\nname = "payload:64KiB"\n')
    code, _, err = start("server", "job.toml").end()
    assert code == 2
    assert "`thalweg server` starts no nodes, and nodes.middle is for those that a run starts" in err
