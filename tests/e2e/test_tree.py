"""``thalweg run --aggregation tree``: worker processes fold what the server receives."""

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
from tests.ports import free_ports
from thalweg.record import Record
from thalweg.record.tables import read_table
from thalweg.transports import pki

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sys.platform != "linux", reason="workers share memory as Linux alone does"),
]

Run = Callable[..., Any]
Start = Callable[..., Program]

URL: Final = "tcp://127.0.0.1:0"
PLAN: Final = """
[job]
clients = 2
rounds = 1

[model]
name = "payload:64KiB"

[transport]
url = "tcp://127.0.0.1:0"

[aggregation]
shape = "tree"

[tree]
top = "dedicated"

[nodes]
count = 2
"""


TREE: Final = ("--aggregation", "tree")


def test_a_tree_trains_the_same_model(result: Run, tmp_path: Path) -> None:
    def trained(name: str, *options: str) -> tuple[bytes, dict[str, Any]]:
        base = ["--model", "lenet", "--data", "digits", "--clients", "2", "--rounds", "1", "--deterministic"]
        done = result("run", *base, *options, "--record", name)
        path: Path = tmp_path / done["record"] / "checkpoint.safetensors"
        return path.read_bytes(), done

    star, plain = trained("star")
    tree, done = trained("tree", "--aggregation", "tree", "--workers", "2")
    assert star == tree
    assert "tree" not in plain
    work = done["tree"]
    assert set(work) == {
        "nodes_used", "workers", "leaves", "created", "reused", "retired", "decisions",
        "aggregators_created", "died", "warm", "commits", "aggregation_completion_seconds",
        "started", "start_us", "resume_us",
        "handover_us", "fold_us", "cpu_seconds", "pool_bytes", "sums_bytes", "routes", "routes_reason", "notes",
        "system", "switches", "pss_bytes",
    }  # fmt: skip
    assert (work["nodes_used"], work["aggregators_created"]) == (1, work["workers"])
    assert work["started"] == {"template": work["workers"], "program": 0}
    assert 0 < work["start_us"]["p50"] <= work["start_us"]["p99"]
    assert work["resume_us"] == {"p50": None, "p99": None}, "nobody has died"
    assert (work["routes"], work["notes"] is None) in (("kernel", False), ("node", True))
    assert set(work["cpu_seconds"]) == {"server", "workers"}
    assert work["pss_bytes"]["server"] > 0
    assert len(work["pss_bytes"]["workers"]) == work["workers"]
    assert len(work["aggregation_completion_seconds"]) == 1
    assert Record(tmp_path / done["record"]).manifest["tree"]["workers"] == work["workers"]


def test_two_nodes_train_the_same_model(result: Run, tmp_path: Path) -> None:
    """The top is the first node that finishes. tests/job/test_tree.py tests the dedicated top."""

    def trained(name: str, *options: str) -> tuple[bytes, dict[str, Any]]:
        base = ["--model", "lenet", "--data", "digits", "--clients", "3", "--rounds", "2", "--deterministic"]
        done = result("run", *base, *options, "--record", name)
        path: Path = tmp_path / done["record"] / "checkpoint.safetensors"
        return path.read_bytes(), done

    star, plain = trained("star")
    nodes = ("--nodes", "2", "--placement", "worst-fit")
    tree, done = trained("tree", "--aggregation", "tree", "--timing", "lazy", *nodes)
    assert star == tree
    assert [row["participants"] for row in done["rounds"]] == [3, 3]
    assert [row["accuracy"] for row in done["rounds"]] == [row["accuracy"] for row in plain["rounds"]]
    work = done["tree"]
    assert (work["nodes_used"], work["top"], work["aggregators_created"], work["died"]) == (
        2,
        "first-finished",
        2,
        0,
    )
    assert work["nodes"] == [{"node": "node-0", "clients": 2}, {"node": "node-1", "clients": 1}]
    assert set(work["cpu_seconds"]["gateways"]) == {"node-0", "node-1"}
    assert all(seconds > 0 for seconds in work["aggregation_completion_seconds"])
    record = Record(tmp_path / done["record"])
    for row in record.rounds():
        fold = row["fold"]
        assert fold is not None
        assert "nodes" in fold
        assert [node["counted"] for node in fold["nodes"]] == [2, 1]
        assert fold["between_bytes"] > 2 * done["update_bytes"]
        assert fold["top"] in ("node-0", "node-1")
        # The times of all nodes are on one clock: no part of a round takes longer than the round.
        assert 0 < row["communication_seconds"] < row["seconds"] + 1


PERSONAL = """
import numpy as np


class App:
    tensors = "!own"

    def model(self):
        return {"shared": np.zeros(10, np.float32), "own": np.zeros(3, np.float32)}

    def client_data(self, name, index, clients, seed):
        return index

    def test_data(self):
        return None

    def train(self, model, data, config):
        model["shared"] += 1
        model["own"] += (data + 1) / 8
        return 1, {}

    def evaluate(self, model, data):
        return {"accuracy": float(model["own"][0]), "loss": 1 - float(model["own"][0])}
"""


@pytest.mark.parametrize(("evaluate", "of_server"), [((), None), (("--evaluate", "both"), 0.0)])
def test_clients_of_nodes_evaluate_what_stays_with_them(
    start: Start, tmp_path: Path, evaluate: tuple[str, ...], of_server: float | None
) -> None:
    (tmp_path / "personal.py").write_text(PERSONAL)
    nodes = ("--aggregation", "tree", "--nodes", "2", "--placement", "worst-fit")
    run = start("run", "--app", "personal.py:App", "--clients", "3", "--rounds", "2", *nodes, *evaluate, "--json")
    code, out, said = run.end()
    assert code == 0, said
    # Client n adds n / 8 to its own tensor in each round: after two rounds 1/4, 1/2 and 3/4.
    assert "round 2/2:" in said
    assert "clients' own accuracy 50.00 %" in said
    done = json.loads(out)
    assert [(row["accuracy"], row["client_accuracy"], row["client_loss"]) for row in done["rounds"]] == [
        (of_server, 0.25, 0.75),
        (of_server, 0.5, 0.5),
    ]
    record = tmp_path / done["record"]
    assert [row["client_accuracy"] for row in read_table(record, "rounds")] == [0.25, 0.5]
    rows = {(row["round"], row["client"]): row["accuracy"] for row in read_table(record, "participants")}
    assert rows == {(number, f"client-{n}"): number * n / 8 for number in (1, 2) for n in (1, 2, 3)}
    assert start("report", str(record), "--out", "r.html").end()[0] == 0
    page = (tmp_path / "r.html").read_text()
    assert "clients&#x27; own accuracy 50.00 %" in page
    assert "client-accuracy-rounds" in page


@pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")
def test_nodes_have_an_emulated_network(result: Run, tmp_path: Path) -> None:
    plan = PLAN.replace("dedicated", "first-finished").replace("64KiB", "256KiB")
    limits = '\nlink = "20mbit"\ncapacity = 1\n[network]\nrate = "50mbit"\n'
    (tmp_path / "job.toml").write_text(plan.replace("rounds = 1", "rounds = 2") + limits)
    done = result("run", "job.toml")
    assert (done["emulation"], done["tree"]["nodes_used"]) == ("packet level", 2)
    record = Record(tmp_path / done["record"])
    parties = read_table(record.path, "parties")
    assert [row["party"] for row in parties] == ["server", "node-0", "node-1", "client-1", "client-2"]
    crossed = {(row["link"], row["direction"]): row["bytes_out"] for row in read_table(record.path, "links")}
    # The model goes from the root to each node, and each node's sums to the top, in each of two rounds.
    assert crossed["server", "ab"] > 2 * 2 * done["update_bytes"]
    for node in ("node-0", "node-1"):
        assert crossed[node, "ba"] > 2 * done["update_bytes"]
    # A node's sums and the mean each take at least the time that a link of 20 Mbit/s needs.
    for row in record.rounds():
        assert row["seconds"] > 2 * done["update_bytes"] * 8 / 20e6


def test_a_node_that_is_killed_is_back_in_the_next_round(start: Start) -> None:
    # Clients compute in each round, so that rounds are long enough for this test to act before the last one.
    base = ("run", "--model", "payload:64KiB", "--clients", "4", "--rounds", "60", "--compute", "100ms")
    tree = ("--aggregation", "tree", "--nodes", "2", "--placement", "worst-fit", "--top", "sharded")
    run = start(*base, *tree, "--json")
    run.until("round 3/60")
    os.kill(run.children("thalweg.job.tree.node")[1], signal.SIGKILL)
    run.until("node-1 is gone")
    run.until("node-1 is back")
    code, out, said = run.end()
    assert code == 0, said
    assert "starting node-1 again" in said
    done = json.loads(out)
    counts = [row["participants"] for row in done["rounds"]]
    assert counts[-1] == 4
    assert set(counts) <= {2, 4}
    assert counts.count(2) <= 2, "it is lost for the round, or for two if it died between them"


def test_clients_of_a_node_that_is_not_started_again_go_on_at_another(start: Start) -> None:
    base = ("run", "--model", "payload:64KiB", "--clients", "4", "--rounds", "30", "--aggregation", "tree")
    run = start(*base, "--nodes", "2", "--placement", "worst-fit", "--node-restarts", "0", "--json")
    run.until("round 3/30")
    os.kill(run.children("thalweg.job.tree.node")[1], signal.SIGKILL)
    run.until("node-1 does not come back; these go on at node-0: client-2, client-4")
    code, out, said = run.end()
    assert code == 0, said
    counts = [row["participants"] for row in json.loads(out)["rounds"]]
    assert counts[-1] == 4
    assert set(counts) <= {2, 4}
    assert counts.count(2) <= 2, "it is lost for the round, or for two if it died between them"


def test_some_clients_of_all_nodes_take_part(result: Run, tmp_path: Path) -> None:
    plan = PLAN.replace("clients = 2", "clients = 6\nchoose = 4").replace("rounds = 1", "rounds = 3")
    (tmp_path / "job.toml").write_text(plan.replace("count = 2", "count = 3\ncapacity = 3"))
    done = result("run", "job.toml")
    assert done["tree"]["nodes_used"] == 2
    assert [row["participants"] for row in done["rounds"]] == [4, 4, 4]
    for row in Record(tmp_path / done["record"]).rounds():
        fold = row["fold"]
        assert fold is not None
        assert "nodes" in fold
        assert sum(node["counted"] for node in fold["nodes"]) == 4


def test_a_round_of_a_tree_ends_with_exactly_its_goal(result: Run, tmp_path: Path) -> None:
    plan = PLAN.replace("clients = 2", "clients = 6\ngoal = 4").replace("rounds = 1", "rounds = 3")
    (tmp_path / "job.toml").write_text(plan.replace("count = 2", "count = 3\ncapacity = 3"))
    several = result("run", "job.toml")
    assert several["tree"]["nodes_used"] == 2
    one = result("run", "--model", "payload:64KiB", "--clients", "6", "--goal", "4", "--rounds", "3", *TREE)
    for done in (several, one):
        assert [row["participants"] for row in done["rounds"]] == [4, 4, 4]
        for row in Record(tmp_path / done["record"]).rounds():
            states = [client["state"] for client in row["clients"]]
            assert (len(states), states.count("whole")) == (6, 4)
            assert all(client["reason"] for client in row["clients"] if client["state"] != "whole")


def issue(folder: Path) -> None:
    """Make the files of two nodes (without the secret) and of two clients."""
    for name in ("west", "east"):
        pki.issue(folder, name, 1, role="tree-node", hosts=["127.0.0.1"])
    for name in ("a", "b"):
        pki.issue(folder, name, 1)


def trusted(name: str) -> tuple[str, ...]:
    """Return the options of a node for one client: what it shows to its parent and to its client."""
    pair = ("--cert", f"pki/{name}.crt", "--key", f"pki/{name}.key")
    return ("--token-file", f"pki/{name}.token", *pair, "--clients", "1", "--json")


def test_nodes_are_started_by_hand(start: Start, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(PLAN)
    pki.init(tmp_path / "pki", ["127.0.0.1"], 1)
    issue(tmp_path / "pki")
    server = start("server", "job.toml", "--pki", "pki", "--json")
    parent = server.until("listening on").split("listening on ")[1].split()[0]
    nodes = {}
    for name in ("west", "east"):
        nodes[name] = start("node", "tcp://127.0.0.1:0", "--parent", parent, *trusted(name))
    for name, node in zip(("a", "b"), nodes.values(), strict=True):
        url = node.until("listening on").split("listening on ")[1].strip()
        start("client", url, "--token-file", f"pki/{name}.token", "--json")
    code, out, said = server.end()
    assert code == 0, said
    done = json.loads(out)
    assert [row["participants"] for row in done["rounds"]] == [2]
    assert {one["node"] for one in done["tree"]["nodes"]} == {"west", "east"}
    for name, node in nodes.items():
        code, out, said = node.end()
        assert code == 0, said
        assert json.loads(out)["rounds"] == 1
        assert json.loads(out)["name"] == name


def test_nodes_started_by_hand_have_a_goal(start: Start, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(
        PLAN.replace("clients = 2", "clients = 4\ngoal = 3").replace("= 1\n", "= 3\n", 1)
    )
    server = start("server", "job.toml", "--json")
    parent = server.until("listening on").split("listening on ")[1].split()[0]
    of_nodes = {"west": 3, "east": 1}
    nodes = {
        name: start("node", URL, "--parent", parent, "--clients", str(clients), "--name", name, "--json")
        for name, clients in of_nodes.items()
    }
    for name, node in nodes.items():
        url = node.until("listening on").split("listening on ")[1].strip()
        for number in range(of_nodes[name]):
            start("client", url, "--name", f"{name}-{number}", "--json")
    code, out, said = server.end()
    assert code == 0, said
    assert [row["participants"] for row in json.loads(out)["rounds"]] == [3, 3, 3]


def test_clients_of_nodes_started_by_hand_move_under_tls(start: Start, tmp_path: Path) -> None:
    """All parties listen on every address of this machine, so links are encrypted. Certificates are for 127.0.0.1."""
    plan = PLAN.replace("tcp://127.0.0.1:0", "tcp://0.0.0.0:0").replace("rounds = 1", "rounds = 40")
    (tmp_path / "job.toml").write_text(plan.replace("count = 2", "count = 2\naway = 0.0"))
    pki.init(tmp_path / "pki", ["127.0.0.1"], 1)
    issue(tmp_path / "pki")
    server = start("server", "job.toml", "--pki", "pki", "--json")
    port = server.until("listening on").split("listening on ")[1].split()[0].rpartition(":")[2]
    ports, nodes = dict(zip(("west", "east"), free_ports(2), strict=True)), {}
    for name, own in ports.items():
        parent, there = f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{own}"
        nodes[name] = start("node", f"tcp://0.0.0.0:{own}", "--parent", parent, "--advertise", there, *trusted(name))
    for name, (node, own) in zip(("a", "b"), ports.items(), strict=True):
        nodes[node].until("listening on")
        start("client", f"tcp://127.0.0.1:{own}", "--token-file", f"pki/{name}.token", "--ca", "pki/ca.crt", "--json")
    server.until("round 3/40")
    os.kill(nodes["east"].process.pid, signal.SIGKILL)
    server.until("east does not come back; these go on at west: b")
    code, out, said = server.end()
    assert code == 0, said
    assert json.loads(out)["rounds"][-1]["participants"] == 2
