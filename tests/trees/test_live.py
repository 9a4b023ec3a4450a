"""Workers that fold a server's updates from its pool: the mean has the server's bits, also with killed workers."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.baselines import NEEDED
from thalweg import _core, wire
from thalweg.plan import Plan
from thalweg.plan.options import CoreOptions
from thalweg.sections import SecuritySection
from thalweg.transports.links import local_trust
from thalweg.trees import live
from thalweg.trees.counters import Created, Decisions, NodeClients, Reused, Totals
from thalweg.trees.merging import workers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers share memory as Linux alone does")

URL: Final = "tcp://127.0.0.1:0"
CLIENTS: Final = 5
ROUNDS: Final = 3
# Slightly more than three stripes of the accumulator.
ELEMENTS: Final = 100_000


WITHOUT_RIGHTS: Final = """
import json
from thalweg import _core, wire
from thalweg.plan import Plan
from thalweg.trees import live

def server(routes):
    plan = Plan.of({"aggregation": {"shape": "tree"}, "tree": {"routes": routes}})
    arena = _core.Arena(_core.Layout([("w", "F32", [4])]))
    return _core.Server(arena, "tcp://127.0.0.1:0", wire.encode(live.options(plan)))

try:
    server("kernel")
except _core.CoreError as error:
    refused = str(error)
made = server("auto")
print(json.dumps([refused, json.loads(made.tree())]))
made.close("done")
"""


# Programs that reach a system limit on shared memory: for a tree's pool, and for an arena that a transport lends.
LIMITED: Final = """
import resource, sys
from thalweg import _core, wire
from thalweg.plan import Plan
from thalweg.trees import live

plan = Plan.of({"aggregation": {"shape": "tree"}, "tree": {"routes": "node"}})
layout = _core.Layout([("w", "F32", [1 << 20])])
arena, options = _core.Arena(layout), wire.encode(live.options(plan))

def pool():
    _core.Server(arena, "memory://limited", options)

def lent():
    _core.Arena(layout, shared=True)

for limit, most in ((resource.RLIMIT_FSIZE, 1 << 20), (resource.RLIMIT_NOFILE, 3)):
    before = resource.getrlimit(limit)
    for make in (pool, lent):
        resource.setrlimit(limit, (most, before[1]))
        try:
            make()
            print("nothing was refused")
        except _core.CoreError as error:
            print(error.kind, error)
        finally:
            resource.setrlimit(limit, before)
"""


def layout() -> _core.Layout:
    return _core.Layout([("weight", "F32", [ELEMENTS]), ("half", "F16", [300])])


# Process groups of the templates seen so far. A worker keeps its process group after its template was killed.
GROUPS: Final[set[int]] = set()


def programs() -> dict[int, bytes]:
    """Return the command lines, by process id, of worker programs that are children of this process or in GROUPS."""
    command_lines: dict[int, bytes] = {}
    for process in Path("/proc").glob("[0-9]*"):
        # Processes may end meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            line = (process / "cmdline").read_bytes()
            # After the name come the state, the parent and the process group (proc_pid_stat(5)).
            _, parent, group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
            if b"aggregator.py" in line and (int(parent) == os.getpid() or int(group) in GROUPS):
                command_lines[int(process.name)] = line
    return command_lines


def templates() -> list[int]:
    """Return the templates of this process. Each leads a process group, which contains the workers that it forked."""
    named = [one for one, line in programs().items() if line.endswith(b"\0template\0")]
    leaders = [one for one in named if leads_group(one)]
    GROUPS.update(leaders)
    return leaders


def leads_group(process: int) -> bool:
    try:
        return os.getpgid(process) == process
    except ProcessLookupError:
        return False


def worker_processes() -> list[int]:
    """Return the workers of this process: those that it started, and those that its templates forked."""
    own = templates()
    return [one for one in programs() if one not in own]


def kill_one(processes: list[int], number: int) -> None:
    """Kill one of these processes, unless another client has just killed it."""
    if processes:
        with suppress(ProcessLookupError):
            os.kill(sorted(processes)[number % len(processes)], signal.SIGKILL)


def train(client: _core.Client, arena: _core.Arena, place: int, refused: list[str], *, kills: bool) -> None:
    """Send updates computed from round and place. With ``kills``, kill workers and templates before each update."""
    client.join()
    while (task := client.next()) is not None:
        random = np.random.default_rng((task[0], place))
        bytes_of = np.asarray(arena).view(np.uint8)
        bytes_of[: 4 * ELEMENTS] = random.normal(size=ELEMENTS).astype(np.float32).view(np.uint8)
        bytes_of[4 * ELEMENTS : 4 * ELEMENTS + 600] = random.normal(size=300).astype(np.float16).view(np.uint8)
        if kills:
            # Every second client kills a template first. Its workers continue, and a new template forks the next ones.
            kill_one(templates() if place % 2 else [], place)
            kill_one(worker_processes(), place)
        try:
            client.submit(task[0], 1.0 + place, "{}")
        except _core.CoreError as error:
            refused.append(str(error))
            return


def kill_the_first() -> None:
    """Wait until there is a worker, and kill it. Each round needs all workers, so the node has to notice."""
    while not (there := worker_processes()):
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        end = os.pidfd_open(there[0])
        os.kill(there[0], signal.SIGKILL)
        assert select.select([end], [], [], 60)[0]
        os.close(end)


def job(
    workers: Mapping[str, object], *, kills: bool = False, leaves: int = 0, **options: Any
) -> tuple[bytes, dict[str, Any] | None]:
    """Run a job; return the last model and the workers' report. ``leaves`` run before the first round begins."""
    own, member = (
        {"token": trust.token, "transport": {"tls": trust.tls}}
        for trust in local_trust(SecuritySection(tls="off"), URL)
    )
    arena = _core.Arena(layout())
    server_options = {
        **own,
        "expected": CLIENTS,
        "enough": CLIENTS,
        "precision": "exact",
        "deadline": 60,
        **options,
        **workers,
    }
    server = _core.Server(arena, URL, wire.encode(server_options))
    threads: list[threading.Thread] = []
    refused: list[str] = []
    for place in range(CLIENTS):
        theirs = _core.Arena(layout())
        client = _core.Client(server.address, f"client-{place}", wire.encode(member), theirs)
        threads.append(threading.Thread(target=train, args=(client, theirs, place, refused), kwargs={"kills": kills}))
        threads[-1].start()
    assert server.wait(CLIENTS, 60) == CLIENTS
    try:
        if kills:
            kill_the_first()
        while leaves and json.loads(server.tree() or "")["created"]["leaf"] < leaves:
            time.sleep(0.01)
        for number in range(1, ROUNDS + 1):
            outcome = json.loads(server.round(number, "{}", None))
            assert outcome["complete"]
            assert outcome["fold"]["completion_seconds"] > 0
        text = server.tree()
        ends = [] if kills else [os.pidfd_open(worker) for worker in worker_processes()]
    finally:
        server.close("the job is over")
        for thread in threads:
            thread.join()
    for end in ends:
        assert select.select([end], [], [], 60)[0], "a worker outlives its server"
        os.close(end)
    assert not refused
    return bytes(np.asarray(arena)), None if text is None else json.loads(text)


def told(count: int, split: str, **tree: Any) -> CoreOptions:
    # The plan's number of leaves, which does not depend on the number of updates.
    fixed = {"scaling": "fixed"} if split == "clients" else {}
    plan = Plan.of({"aggregation": {"shape": "tree"}, "tree": {"workers": count, "split": split, **fixed, **tree}})
    return live.options(plan)


def kernel_routes() -> str | None:
    """Return why notes cannot go inside the kernel here; None if they can."""
    try:
        _core.tree_routes()
    except _core.CoreError as error:
        return str(error)
    return None


@pytest.fixture(params=["node", "kernel"])
def routes(request: pytest.FixtureRequest) -> str:
    why = kernel_routes() if request.param == "kernel" else None
    if why is not None:
        pytest.skip(why)
    return str(request.param)


@pytest.fixture(scope="module")
def star() -> bytes:
    model, tree = job({})
    assert tree is None
    return model


@pytest.mark.parametrize(("count", "split"), [(1, "ranges"), (2, "ranges"), (3, "clients")])
def test_workers_give_the_servers_bits(star: bytes, count: int, split: str, routes: str) -> None:
    model, tree = job(told(count, split, routes=routes))
    assert model == star
    assert tree is not None
    assert (tree["workers"], tree["aggregators_created"], tree["died"]) == (count, count, 0)
    assert tree["commits"] == ROUNDS
    assert tree["cpu_seconds"] > 0
    middle, most = tree["handover_us"]["p50"], tree["handover_us"]["p99"]
    # The hand-over is only measured if an idle worker gets an update, so both may be None.
    assert (middle is most is None) or 0 < middle <= most
    assert (middle is None) or middle <= tree["fold_us"]["p50"]
    assert tree["pool_bytes"] > CLIENTS * 4 * ELEMENTS
    assert (tree["routes"], tree["routes_reason"]) == (routes, "asked for")
    if routes == "node":
        assert tree["notes"] is None
    else:
        # Each update and each commit needs two notes: an order and an answer.
        assert tree["notes"]["routed"] >= 2 * ROUNDS * (CLIENTS + 1)
        assert tree["notes"]["passed"] == 0


@pytest.mark.parametrize("split", ["ranges", "clients"])
def test_lazy_workers_give_the_servers_bits(star: bytes, split: str) -> None:
    model, tree = job(told(2, split, timing="lazy"))
    assert model == star
    assert tree is not None
    assert tree["commits"] == ROUNDS


def test_lazy_workers_fold_what_fills_the_pool(star: bytes) -> None:
    model, tree = job(told(1, "ranges", timing="lazy"), staging=2 * 4 * ELEMENTS + 2000)
    assert model == star
    assert tree is not None
    assert tree["pool_bytes"] < 2 * CLIENTS * 4 * ELEMENTS


def test_auto_takes_the_kernel_where_it_can_and_says_why() -> None:
    _, tree = job(told(1, "ranges"))
    assert tree is not None
    why = kernel_routes()
    if why is None:
        assert (tree["routes"], tree["routes_reason"]) == ("kernel", "the kernel can")
    else:
        assert tree["routes"] == "node"
        assert tree["routes_reason"] in why


@pytest.mark.skipif(os.geteuid() != 0, reason="a right can be dropped by who has it: run as root")
def test_without_the_right_to_load_programs_the_node_takes_notes() -> None:
    """The process has no CAP_BPF, CAP_NET_ADMIN or CAP_SYS_ADMIN."""
    dropped = "-sys_admin,-bpf,-net_admin"
    done = subprocess.run(
        ["setpriv", "--bounding-set", dropped, "--inh-caps", dropped, sys.executable, "-c", WITHOUT_RIGHTS],
        capture_output=True,
        text=True,
        check=True,
    )
    refused, tree = json.loads(done.stdout)
    for said in (refused, tree["routes_reason"]):
        assert "CAP_BPF" in said
        assert "clang" not in said
    assert "--routes node" in refused
    assert (tree["routes"], tree["notes"]) == ("node", None)


def test_limits_of_shared_memory_are_named() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()
    assert len(said) == 4
    for line, limit in zip(said, ("ulimit -f", "ulimit -f", "ulimit -n", "ulimit -n"), strict=True):
        assert line.startswith("memory "), line
        assert limit in line


@pytest.mark.parametrize("split", ["ranges", "clients"])
def test_killed_workers_change_no_bit(star: bytes, split: str, routes: str) -> None:
    """Killed templates do not either. One worker is killed before the first round, and clients kill others later."""
    model, tree = job(told(2, split, routes=routes), kills=True)
    assert model == star
    assert tree is not None
    assert tree["died"] > 0
    assert sum(tree["started"].values()) == tree["aggregators_created"] > tree["died"]


@pytest.mark.parametrize(
    ("system", "copied", "passed", "stays"),
    [
        pytest.param("sf", True, False, True, marks=NEEDED),
        ("sf-mono", False, False, True),
        pytest.param("sf-micro", True, True, True, marks=NEEDED),
        pytest.param("sl", True, True, False, marks=NEEDED),
        ("sl-h", False, False, False),
    ],
)
def test_every_system_gives_the_servers_bits(star: bytes, system: str, copied: bool, passed: bool, stays: bool) -> None:
    plan = Plan.of({"aggregation": {"shape": "tree"}, "tree": {"system": system, "workers": 2}})
    options = live.options(plan)
    assert (options["workers"].data_plane != "pool") == copied
    assert options["workers"].start == ("always" if stays else "cold")
    model, tree = job(options)
    assert model == star
    assert tree is not None
    assert (tree["hops_cpu_seconds"] > 0) == passed
    assert tree["died"] == 0
    if options["workers"].autoscaler is None:
        assert tree["decisions"] is None
    else:
        first = tree["decisions"]["latest"][0]
        assert (first["before"], first["reasons"]) == (0, ["an update arrived while there was no worker"])
        assert 0 < first["leaves"] <= 2


def test_a_pool_smaller_than_the_round_serves_all(star: bytes) -> None:
    model, tree = job(told(1, "ranges"), staging=1)
    assert model == star
    assert tree is not None
    assert tree["pool_bytes"] < CLIENTS * 4 * ELEMENTS
    assert tree["commits"] > ROUNDS, "slots are made free within a round"


def test_a_worker_that_cannot_start_fails_the_round_with_a_reason() -> None:
    workers = {"workers": {"count": 1, "split": "ranges", "command": ["/nonexistent/worker"]}}
    with pytest.raises(_core.CoreError, match="no worker could be started"):
        job(workers)


def test_there_are_as_many_workers_as_the_plan_says() -> None:
    def count(**tree: Any) -> int:
        return live.workers(Plan.of({"job": {"clients": 3}, "tree": tree}))

    assert count() == 1
    assert count(workers="auto") == 1
    assert count(workers=7) == 7
    assert count(split="clients", inputs=3) == 1
    assert count(split="clients", inputs=1) <= 3
    # The number that a planned hierarchy needs, but at most the plan's number; with fixed scaling the plan's number.
    assert count(split="clients", workers=7) == 2
    assert count(split="clients", workers=1) == 1
    assert count(split="clients", workers=7, scaling="fixed") == 7
    assert count(split="clients", workers=7, scaling="knative") == 7


def test_a_planned_hierarchy_of_several_nodes_is_for_what_a_node_holds() -> None:
    def count(**nodes: Any) -> int:
        tree = {"split": "clients", "workers": 100}
        return live.workers(Plan.of({"job": {"clients": 40}, "tree": tree, "nodes": nodes}))

    assert count(count=1) == 20
    assert count(count=4, capacity=10) == 5


def test_a_record_names_the_switches_that_a_run_follows() -> None:
    counters = wire.encode(workers([]))
    report = live.work_report(Plan.of({"aggregation": {"shape": "tree"}}), counters, 0.5)
    assert report is not None
    assert report.system == "lifl"
    assert report.switches["start"] == "template"
    assert not {"reuse", "scaling", "placement"} & set(report.switches), "ranges have no leaves, and there is one node"
    assert live.options(Plan.of({})) == {}


def test_a_record_claims_only_what_was_done() -> None:
    plan = Plan.of({"aggregation": {"shape": "tree"}, "tree": {"split": "clients", "workers": 2}})

    def claimed(plan: Plan, counters: Totals) -> Mapping[str, object]:
        return live.followed(plan, counters)

    nothing = replace(workers([]), decisions=Decisions(1, ()))
    assert "reuse" not in claimed(plan, nothing), "no round had two leaves"
    assert claimed(plan, nothing)["scaling"] == "hierarchy"
    assert claimed(plan, replace(nothing, reused=Reused(2)))["reuse"] is True
    apart = plan.merge({"tree.reuse": False})
    assert claimed(apart, replace(nothing, created=Created(2, 1)))["reuse"] is False
    nodes = (NodeClients("node-0", 2), NodeClients("node-1", 1))
    assert claimed(plan, replace(nothing, nodes=nodes))["placement"] == "best-fit"


@pytest.mark.parametrize("system", ["lifl", "sf", "sl-h"])
def test_systems_differ_in_their_switches_alone(system: str) -> None:
    """All other options of workers are the same."""

    def workers_of(system: str) -> dict[str, object]:
        tree = {"system": system, "split": "clients", "workers": 2}
        return vars(live.options(Plan.of({"aggregation": {"shape": "tree"}, "tree": tree}))["workers"])

    of_switches = {"data_plane", "side_process", "start", "timing", "autoscaler", "plans", "middle"}
    other, own = workers_of("lifl"), workers_of(system)
    assert {key for key in own if own[key] != other[key]} <= of_switches
    assert (own["plans"] is not None) == (system == "lifl")
    assert own["middle"] == {"lifl": "reused", "sf": "node", "sl-h": "own"}[system]


@pytest.mark.parametrize("reuse", [True, False])
def test_leaves_are_planned_while_a_job_runs_and_a_middle_adds_up_their_sums(
    star: bytes, reuse: bool, routes: str
) -> None:
    tree = {"split": "clients", "workers": 3, "inputs": 1, "reuse": reuse, "routes": routes}
    options = live.options(Plan.of({"aggregation": {"shape": "tree"}, "tree": tree, "job": {"clients": CLIENTS}}))
    # A leaf that does not run yet gets no updates if others do; then there is no middle.
    model, work = job(options, leaves=3)
    assert model == star
    assert work is not None
    first = work["decisions"]["latest"][0]
    assert (first["number"], first["before"], first["leaves"], first["middle"]) == (1, 0, 3, True)
    assert first["reasons"]
    assert work["leaves"] == 3
    assert work["created"] == {"leaf": 3, "middle": 0 if reuse else 1}
    assert work["reused"] == {"middle": ROUNDS if reuse else 0}
    assert work["retired"] == work["died"] == 0
