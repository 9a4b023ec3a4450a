"""Jobs on a graph, each node in a process of its own: they learn, and continue when one of them is lost."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Program, Start, why_no_lab
from tests.ports import free_ports
from thalweg.record import Record
from thalweg.record.tables import ON_GRAPHS, read_table
from thalweg.report import report
from thalweg.transports import pki

pytestmark = pytest.mark.e2e

DIGITS = ("--model", "lenet", "--data", "digits")
PAYLOAD = ("--model", "payload:256KiB")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="shared memory by descriptors is Linux's")


def run(start: Start, *words: str) -> dict[str, Any]:
    """Run a job on a graph; return the output of ``thalweg run --json``."""
    code, out, err = start("run", "--record", "runs", "--json", *words).end()
    assert code == 0, err
    said: dict[str, Any] = json.loads(out)
    return said


def nodes_of(program: Program) -> list[int]:
    """The ids of its node processes, in the order they were started."""
    return program.children("thalweg.job.graph.node")


def wait_for_end(processes: list[int]) -> None:
    """Wait until processes have ended, however long that takes."""
    for process in processes:
        with suppress(ProcessLookupError):  # it has ended already
            descriptor = os.pidfd_open(process)
            select.select([descriptor], [], [])
            os.close(descriptor)


def test_sixteen_processes_learn_digits(start: Start, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        "[job]\ngraph = '3-regular'\nclients = 16\nrounds = 4\ntest_every = 2\n"
        "[training]\nlocal_steps = 12\nbatch = 16\nlearning_rate = 0.01\n"
    )
    said = run(start, str(plan), *DIGITS)
    assert (said["graph"], said["nodes"], said["iterations"]) == ("3-regular", 16, 4)
    # Each node has trained on 48 batches of 16, drawn from its own 94 samples.
    assert said["accuracy"]["mean"] > 0.7
    assert said["chunks_used"] == 1.0
    # The columns of the weights sum to 1, so only rounding moves the mean.
    assert said["drift"] < 1e-5
    assert 0 < said["disagreement"] < 0.5
    folder = tmp_path / said["record"]
    assert {path.stem for path in folder.glob("*.parquet")} == {*ON_GRAPHS, "parties"}
    assert len(read_table(folder, "iterations")) == 16 * 4
    assert len(read_table(folder, "exchanges")) == 16 * 4 * 3
    assert sorted({row["round"] for row in read_table(folder, "evaluations")}) == [2, 4]
    assert len(Record(folder).manifest["graph"]["edges"]) == 24
    assert {row["party"] for row in read_table(folder, "parties")} == {f"node-{n}" for n in range(1, 17)}
    shown = report([folder], tmp_path / "page.html")
    assert shown.runs[0].graph is not None
    assert len(shown.runs[0].graph.nodes) == 16


@pytest.mark.parametrize("transport", ["tcp", pytest.param("shm", marks=LINUX), "udp", "ltp", "zmq", "grpc", "quic"])
def test_every_link_carries_a_model_each_way_in_each_iteration(start: Start, tmp_path: Path, transport: str) -> None:
    said = run(start, "--graph", "ring", "--clients", "3", "--rounds", "3", "--transport", transport, *PAYLOAD)
    exchanges = read_table(tmp_path / said["record"], "exchanges")
    assert {(row["round"], row["node"], row["neighbour"]) for row in exchanges} == {
        (number, f"node-{a}", f"node-{b}") for number in (1, 2, 3) for a in (1, 2, 3) for b in (1, 2, 3) if a != b
    }
    assert {(row["state"], row["bytes"], row["weight"]) for row in exchanges} == {("whole", 256 << 10, 1 / 3)}


@pytest.mark.parametrize(
    "words",
    [
        ("--wait", "none"),
        ("--wait", "deadline"),
        ("--wait", "first-chunk", "--deadline", "5"),
        ("--weights", "renormalise"),
        ("--weights", "symmetric", "--wait", "deadline", "--network", "loss=20%", "--emulator", "message"),
        ("--tls", "on"),
        ("--network", "rate=1gbit,rtt=2ms", "--emulator", "message"),
    ],
    ids=" ".join,
)
def test_other_ways_come_to_their_end(start: Start, words: tuple[str, ...]) -> None:
    said = run(start, "--graph", "3-regular", "--clients", "4", "--rounds", "3", *PAYLOAD, *words)
    assert said["iterations"] >= 1
    # All nodes begin with equal models and do not train. So any mean is that model, for any loss.
    assert said["disagreement"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("rule", ["symmetric", "paper"])
def test_models_that_are_put_aside_come_to_the_same_mean(start: Start, tmp_path: Path, rule: str) -> None:
    said = run(start, "--graph", "star", "--clients", "4", "--rounds", "3", "--weights", rule, *DIGITS)
    # All chunks arrived in both directions. So these are the Metropolis-Hastings weights of a graph with different
    # degrees.
    rows = read_table(tmp_path / said["record"], "exchanges")
    assert {(row["state"], row["weight"]) for row in rows} == {("whole", 0.25)}
    assert said["drift"] < 1e-5


def test_a_one_peer_graph_sends_one_model_an_iteration(start: Start, tmp_path: Path) -> None:
    said = run(start, "--graph", "one-peer", "--clients", "4", "--rounds", "4", *PAYLOAD)
    rows = read_table(tmp_path / said["record"], "exchanges")
    came = {(row["round"], row["node"], row["neighbour"], row["state"], row["weight"]) for row in rows}
    assert came == {
        (number, f"node-{1 + (node + step) % 4}", f"node-{1 + node}", "whole", 0.5)
        for number, step in ((1, 1), (2, 2), (3, 1), (4, 2))
        for node in range(4)
    }


def test_nodes_that_send_a_share_of_their_models_send_so_many_bytes(start: Start, tmp_path: Path) -> None:
    said = run(start, "--graph", "ring", "--clients", "4", "--rounds", "6", "--share", "0.25", *PAYLOAD)
    exchanges = read_table(tmp_path / said["record"], "exchanges")
    assert {(row["state"], row["bytes"]) for row in exchanges} == {("whole", 64 << 10)}
    # Bytes that a node sends after its last iteration has ended are not counted.
    least, most = (rounds * 4 * 2 * (256 << 10) for rounds in (5, 6))
    assert 0.25 * least < said["bytes_sent"] < 0.3 * most
    assert said["chunks_used"] == 1.0


def test_a_graph_that_is_drawn_anew_meets_others_each_time(start: Start, tmp_path: Path) -> None:
    said = run(start, "--graph", "2-regular,dynamic", "--clients", "6", "--rounds", "6", *PAYLOAD)
    met: dict[int, set[str]] = {}
    for row in read_table(tmp_path / said["record"], "exchanges"):
        if row["node"] == "node-1":
            met.setdefault(row["round"], set()).add(row["neighbour"])
    assert all(len(names) == 2 for names in met.values())
    assert len({frozenset(names) for names in met.values()}) > 1


def test_neighbours_go_on_without_a_node_that_is_killed(start: Start, tmp_path: Path) -> None:
    program = start("run", "--record", "runs", "--json", "--graph", "ring", "--clients", "4", "--rounds", "150",
                    "--compute", "40ms", *PAYLOAD)  # fmt: skip
    program.until("iteration 3/150")
    os.kill(nodes_of(program)[1], signal.SIGKILL)
    program.until("is gone: killed by signal 9")
    code, out, err = program.end()
    assert code == 0, err
    said = json.loads(out)
    assert said["iterations"] == 150
    rows = read_table(tmp_path / said["record"], "iterations")
    last = [row for row in rows if row["round"] == 150]
    assert len(last) == 3
    (gone,) = Record(tmp_path / said["record"]).manifest["gone"]
    beside = [row for row in read_table(tmp_path / said["record"], "exchanges") if row["neighbour"] == gone]
    assert {row["state"] for row in beside if row["round"] == 150} == {"away"}


def test_neighbours_go_on_while_a_node_is_paused(start: Start, tmp_path: Path) -> None:
    program = start("run", "--record", "runs", "--json", "--graph", "ring", "--clients", "4", "--rounds", "100",
                    "--wait", "deadline", "--compute", "50ms", *PAYLOAD)  # fmt: skip
    program.until("iteration 3/100")
    paused, *others = nodes_of(program)
    os.kill(paused, signal.SIGSTOP)
    wait_for_end(others)
    os.kill(paused, signal.SIGCONT)
    code, out, err = program.end()
    assert code == 0, err
    rows = read_table(tmp_path / json.loads(out)["record"], "iterations")
    finished = [row["node"] for row in rows if row["round"] == 100]
    assert len(finished) == 4, "it goes on alone when it comes back"
    # The number of skipped iterations depends on the machine's load. crates/proto tests it in virtual time.


def test_a_node_that_is_twenty_times_slower_skips_iterations_and_is_heard(start: Start, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import numpy as np\nfrom thalweg.apps.computing import compute\n\n"
        "class App:\n"
        "    def __init__(self, slow):\n        self.slow = slow\n"
        "    def model(self):\n        return {'w': np.zeros(1000, dtype=np.float32)}\n"
        "    def client_data(self, name, **part):\n        return name\n"
        "    def train(self, model, data, config):\n"
        "        compute({'compute': 0.4 if data == self.slow else 0.02})\n        return 1, {}\n"
    )
    (tmp_path / "plan.toml").write_text(
        "[job]\ngraph = '3-regular'\nclients = 6\nrounds = 100\nwait = 'deadline'\n"
        "[app]\nobject = 'app.py:App'\noptions = { slow = 'node-3' }\n"
    )
    record = tmp_path / run(start, "plan.toml")["record"]
    rows = read_table(record, "iterations")
    mine = {f"node-{n}": [row for row in rows if row["node"] == f"node-{n}"] for n in range(1, 7)}
    slow = mine.pop("node-3")
    # The slow node takes over its neighbours' iteration numbers, so that they use its models. Whether the neighbours
    # wait for it depends on the machine's load here; crates/proto/tests/machines/node tests that in virtual time.
    assert len(slow) < min(len(of_node) for of_node in mine.values())
    assert sum(row["skipped"] for row in slow) > 0
    heard = {row["round"] for row in read_table(record, "exchanges") if row["neighbour"] == "node-3" and row["bytes"]}
    assert heard


def test_a_run_of_which_a_node_cannot_begin_says_why(start: Start, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("class App:\n    def model(self):\n        raise ValueError('no model today')\n"
                                     "    def train(self, model, data, config):\n        return 1, {}\n")  # fmt: skip
    code, out, err = start("run", "--record", "runs", "--json", "--graph", "ring", "--app", "app.py:App").end()
    assert code == 1
    assert "no model today" in json.loads(out)["error"]["cause"]
    assert "could not take part" in err


def test_impossible_plans_are_refused_before_anything_starts(start: Start, tmp_path: Path) -> None:
    (tmp_path / "bad.edges").write_text("4\n0 1\n1 1\n")
    for words, cause in (
        (("--graph", "file:bad.edges"), "line 3 of bad.edges is a loop"),
        (("--graph", "ring", "--transport", "unifl"), "the two ends of a link over 'unifl' differ"),
        (("--graph", "3-regular", "--clients", "5"), "cannot be 3-regular"),
    ):
        code, out, _ = start("run", "--record", "runs", "--json", *words).end()
        assert code == 2
        assert cause in json.loads(out)["error"]["cause"]
    assert not (tmp_path / "runs").exists()


CHECKPOINTS = """
[job]
graph = 'ring'
clients = 4
rounds = {rounds}
wait = 'all'
[model]
name = 'lenet'
[data]
name = 'digits'
[algorithm]
name = '{algorithm}'
[aggregation]
precision = 'exact'
[record]
checkpoint_every = 2
"""


def kept(folder: Path) -> dict[str, bytes]:
    """Return the models in a record, by the names of their files."""
    return {path.name: path.read_bytes() for path in (folder / "nodes").iterdir()}


def test_a_resumed_job_gives_the_same_models(start: Start, tmp_path: Path) -> None:
    for rounds in (3, 6):
        (tmp_path / f"{rounds}.toml").write_text(CHECKPOINTS.format(rounds=rounds, algorithm="dpsgd"))
    straight = tmp_path / run(start, "6.toml")["record"]
    folder = run(start, "3.toml")["record"]
    models = kept(tmp_path / folder)
    assert set(models) == {f"{place}-3.safetensors" for place in (1, 2, 3, 4)}
    assert len(set(models.values())) == 4, "models differ"
    said = run(start, "6.toml", "--resume", folder)
    assert (said["record"], said["iterations"]) == (folder, 6)
    assert [row["round"] for row in Record(tmp_path / folder).rounds()] == [1, 2, 3, 4, 5, 6]
    assert kept(tmp_path / folder) == kept(straight), "sums are exact, so no order of arrival changes them"
    assert set(kept(straight)) == {f"{place}-6.safetensors" for place in (1, 2, 3, 4)}


def test_a_killed_job_resumes_from_an_iteration_that_all_nodes_saved(start: Start, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(CHECKPOINTS.format(rounds=400, algorithm="choco"))
    program = start("run", plan.name, "--record", "runs", "--json")
    program.until("iteration 4")
    program.process.send_signal(signal.SIGKILL)
    program.process.wait()
    (folder,) = (tmp_path / "runs").iterdir()
    done = Record(folder).checkpoint_round
    assert done is not None
    assert done >= 2
    plan.write_text(CHECKPOINTS.format(rounds=done + 2, algorithm="choco"))
    said = run(start, plan.name, "--resume", str(folder))
    assert said["iterations"] == done + 2
    assert said["chunks_used"] == 1.0
    code, out, err = start("run", "--resume", str(folder), "--json").end()
    assert (code, json.loads(out)["status"]) == (0, "complete")
    assert f"all {done + 2} rounds of" in err


NODES = ("anna", "berta", "clara")


def plan_of_nodes(folder: Path, *, name: str = "plan.toml", rounds: int = 3) -> Path:
    ports = (folder / "ports").read_text().splitlines()
    hosts = "".join(f'{node} = "127.0.0.1:{port}"\n' for node, port in zip(NODES, ports, strict=True))
    plan = folder / name
    plan.write_text(
        f"[job]\ngraph = 'ring'\nrounds = {rounds}\n[model]\nname = 'payload:64KiB'\n[hosts.nodes]\n{hosts}"
    )
    return plan


@pytest.fixture
def guarded(tmp_path: Path) -> Path:
    """Write a plan of three nodes, with their certificates beside it."""
    (tmp_path / "ports").write_text("\n".join(map(str, free_ports(3))))
    pki.init(tmp_path / "pki", ["localhost"], 1)
    for node in NODES:
        pki.issue(tmp_path / "pki", node, 1, hosts=["127.0.0.1"], role="graph-node")
    return plan_of_nodes(tmp_path)


def node(start: Start, plan: Path, name: str, *, shows: str | None = None) -> Program:
    """Start a node with its own certificate, or with another node's (``whose``)."""
    whose = shows or name
    return start("node", plan.name, "--name", name, "--json", "--ca", "pki/ca.crt", "--cert", f"pki/{whose}.crt",
                 "--key", f"pki/{whose}.key", "--timeout", "60")  # fmt: skip


def test_nodes_on_their_own_meet_under_mutual_tls(start: Start, guarded: Path, tmp_path: Path) -> None:
    programs = {name: node(start, guarded, name) for name in NODES}
    for name, program in programs.items():
        code, out, err = program.end()
        assert code == 0, err
        said = json.loads(out)
        assert (said["name"], said["nodes"], said["iterations"], said["chunks_used"]) == (name, 3, 3, 1.0)
        assert said["drift"] is said["disagreement"] is None
        record = Record(tmp_path / said["record"])
        assert (record.manifest["node"], record.manifest["tls"]) == (name, True)
        heard = {row["neighbour"] for row in read_table(record.path, "exchanges")}
        assert heard == set(NODES) - {name}


def test_a_node_on_its_own_goes_on_from_its_record(start: Start, tmp_path: Path) -> None:
    (tmp_path / "ports").write_text("\n".join(map(str, free_ports(3))))
    records: dict[str, str] = {}
    for rounds in (2, 4):
        plan, programs = plan_of_nodes(tmp_path, rounds=rounds), {}
        trained = plan.read_text().replace("payload:64KiB", "lenet")
        plan.write_text(trained + "[data]\nname = 'digits'\n[record]\ncheckpoint_every = 1\n")
        for name in NODES:
            words = ("--resume", records[name]) if records else ()
            programs[name] = start("node", plan.name, "--name", name, "--json", *words)
        ended = {name: program.end() for name, program in programs.items()}
        assert all(code == 0 for code, _, _ in ended.values()), [err for _, _, err in ended.values()]
        records = {name: json.loads(out)["record"] for name, (_, out, _) in ended.items()}
    for place, name in enumerate(NODES, 1):
        record = Record(tmp_path / records[name])
        assert [row["round"] for row in record.rounds()] == [1, 2, 3, 4]
        assert set(kept(record.path)) == {f"{place}-4.safetensors"}
    code, out, err = start("node", plan.name, "--name", "anna", "--json", "--resume", records["berta"]).end()
    assert code != 0
    assert "is not a record of this node" in json.loads(out)["error"]["cause"], err


def test_a_node_with_the_certificate_of_another_is_refused(start: Start, guarded: Path) -> None:
    # Of two nodes the one with the greater name listens. It compares the other's certificate with the name in the
    # handshake.
    node(start, guarded, "clara").until("waiting for anna, berta")
    code, out, err = node(start, guarded, "berta", shows="anna").end()
    assert code != 0
    assert 'the certificate is for "anna", the client says it is "berta"' in json.loads(out)["error"]["cause"], err


def test_a_node_that_is_dialled_needs_a_certificate_in_its_own_name(start: Start, guarded: Path) -> None:
    # Clara's certificate is from the same authority, and for the same host.
    node(start, guarded, "berta", shows="clara").until("waiting for anna, clara")
    code, out, err = node(start, guarded, "anna").end()
    assert code != 0
    assert 'is for "clara" in the role graph-node, not for "berta"' in json.loads(out)["error"]["cause"], err


def test_a_node_with_another_plan_is_refused(start: Start, guarded: Path, tmp_path: Path) -> None:
    first = node(start, guarded, "anna")
    first.until("waiting for berta, clara")
    code, out, err = node(start, plan_of_nodes(tmp_path, name="other.toml", rounds=9), "berta").end()
    assert code != 0
    assert "has another plan than this node" in json.loads(out)["error"]["cause"], err


def test_beyond_this_machine_a_node_needs_certificates(start: Start, guarded: Path) -> None:
    code, out, _ = start("node", guarded.name, "--name", "anna", "--listen", "tcp://0.0.0.0:0", "--json").end()
    assert code != 0
    assert "nothing says who this node is" in json.loads(out)["error"]["cause"]


@pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "there is a lab")
@pytest.mark.parametrize("scheme", ["udp", "quic"])
def test_nodes_meet_over_a_long_round_trip(start: Start, tmp_path: Path, scheme: str) -> None:
    # An attempt to connect takes some round trips: more than a second.
    words = ("--network", "rtt=800ms", "--emulator", "packet", "--transport", scheme)
    said = run(start, "--graph", "ring", "--clients", "3", "--rounds", "1", *PAYLOAD, *words)
    record = Record(tmp_path / said["record"])
    assert record.manifest["emulation"] == "packet level"
    rows = read_table(record.path, "exchanges")
    assert [row["state"] for row in rows] == ["whole"] * 3 * 2


@pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "there is a lab")
@pytest.mark.parametrize(
    ("topology", "link"), [("star", "node-1"), ("mesh", "node-1_node-2"), ("ring", "node-1_node-2")]
)
def test_links_of_an_emulated_network_carry_the_exchanges(
    start: Start, tmp_path: Path, topology: str, link: str
) -> None:
    words = ("--network", "rate=100mbit,rtt=4ms", "--topology", topology, "--emulator", "packet")
    said = run(start, "--graph", "ring", "--clients", "3", "--rounds", "4", *PAYLOAD, *words)
    record = Record(tmp_path / said["record"])
    assert record.manifest["emulation"] == "packet level"
    # In a star, one link carries all that a node sends to its two neighbours. Otherwise each neighbour has a link of
    # its own.
    least = 4 * (256 << 10) * (2 if topology == "star" else 1)
    rows = {(row["link"], row["direction"]): row for row in read_table(record.path, "links")}
    for direction in ("ab", "ba"):
        assert least <= rows[link, direction]["bytes_out"] < 2 * least
    assert rows["server" if topology == "star" else "node-1", "ab"]["bytes_out"] < 10_000
    parties = {row["party"]: row for row in read_table(record.path, "parties")}
    assert set(parties) == {"node-1", "node-2", "node-3"}
