"""Trees of three levels: a middle node has nodes below it, and its parent gets their sums as its own."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any, Final

import pytest

from tests.job.test_tree import TOKEN, URL, Rooted, layout, mean, take_part
from tests.ports import free_ports
from thalweg import _core, wire
from thalweg.bounded_json import MOST_BYTES
from thalweg.errors import PlanError, RoundError
from thalweg.job.tree import messages
from thalweg.job.tree.known import Node, Received
from thalweg.job.tree.middle import MiddleNode
from thalweg.job.tree.node import Gateway
from thalweg.job.tree.order import NodeOrder
from thalweg.job.tree.remote_node import TreeNodeOptions, run_tree_node
from thalweg.job.tree.root import Tree
from thalweg.transports.links import Trust
from thalweg.trees import answers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers share memory as Linux alone does")

# The clients of each node, by middle. The node "near" is one of the root's.
WEST: Final = {"west-1": ["a"], "west-2": ["b", "c"]}
EAST: Final = {"east-1": ["d"]}
NEAR: Final = {"near": ["e"]}
NAMES: Final = ["west", "east", *WEST, *EAST, *NEAR]
CLIENTS: Final = [client for nodes in (WEST, EAST, NEAR) for clients in nodes.values() for client in clients]


@dataclass
class Levels(Rooted):
    """A tree of three levels with its nodes' processes."""

    processes: dict[str, Popen[bytes]] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=lambda: dict(zip(NAMES, free_ports(len(NAMES)), strict=True)))

    def start(self, name: str, parent: str, *, clients: int = 0, nodes: int | None = None) -> str:
        """Start a node; return its URL. A node that is started again has the same URL."""
        listen = self.urls[name] = f"tcp://127.0.0.1:{self.ports[name]}"
        order = NodeOrder(
            name=name,
            url=parent,
            listen=listen,
            clients=clients,
            nodes=nodes,
            options={"token": TOKEN, "timeout": 60.0, "transport": {}, "tree": True, "seed": len(self.processes)},
            trust=Trust(token=TOKEN),
        )
        command = [sys.executable, "-m", "thalweg.job.tree.node"]
        process = self.processes[name] = Popen(command, stdin=PIPE, stdout=DEVNULL)
        assert process.stdin is not None
        process.stdin.write(wire.encode(order).encode() + b"\n")
        process.stdin.close()
        return listen

    def kill(self, name: str) -> None:
        """Kill a node's process. The test tells no other party."""
        self.processes[name].kill()
        self.processes[name].wait()

    def await_ends(self) -> None:
        """Wait until all nodes' processes have ended."""
        for process in self.processes.values():
            process.wait(60)


@contextmanager
def levels(before: Callable[[Levels, str, int], None] = lambda *_: None, **options: Any) -> Iterator[Levels]:
    """Run a tree with two middle nodes and one node of the root. ``before`` is called before a client submits."""
    model = _core.Arena(layout())
    node_options: Any = {
        "precision": "exact",
        "transport": {},
        "seed": 0,
        "workers": {"count": 1, "split": "ranges"},
        "grace": 1.0,
        "expected": len(CLIENTS),
        **options,
    }
    choose = node_options.pop("choose", None)
    own: Any = {"token": TOKEN, "grace": node_options["grace"], "transport": {}, "tree": True}
    tree = Tree(model, URL, 3, node_options, own, top="dedicated", choose=choose)
    made = Levels(tree, model)
    threads: list[threading.Thread] = []
    with ExitStack() as stack:
        stack.callback(_join, threads)
        stack.callback(made.await_ends)
        stack.callback(lambda: tree.close("the job is over"))
        for middle, nodes in (("west", WEST), ("east", EAST)):
            url = made.start(middle, tree.address, nodes=len(nodes))
            threads += [_client_threads(made, made.start(n, url, clients=len(c)), c, before) for n, c in nodes.items()]
        threads.append(_client_threads(made, made.start("near", tree.address, clients=1), NEAR["near"], before))
        for thread in threads:
            thread.start()
        until = time.monotonic() + 60
        while tree.wait(len(CLIENTS), None) < len(CLIENTS):
            assert time.monotonic() < until, tree.notes()
        yield made


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        if thread.ident is not None:  # it was started
            thread.join()


def _client_threads(
    made: Levels, url: str, clients: list[str], before: Callable[[Levels, str, int], None]
) -> threading.Thread:
    """Return a thread that runs a node's clients."""

    def run() -> None:
        each = [
            threading.Thread(target=take_part, args=(url, one, lambda n, one=one: before(made, one, n), 60.0))
            for one in clients
        ]
        for thread in each:
            thread.start()
        for thread in each:
            thread.join()

    return threading.Thread(target=run)


def states(outcome: dict[str, Any]) -> dict[str, str]:
    return {one["client"]: one["state"] for one in outcome["participants"]}


def test_a_tree_of_three_levels_has_the_bits_of_one_server() -> None:
    with levels() as made:
        for number in (1, 2):
            outcome = made.round(number)
            assert states(outcome) == dict.fromkeys(CLIENTS, "whole")
            assert outcome["complete"]
            assert made.bits() == mean(number, CLIENTS)
            nodes = {node["node"]: node["counted"] for node in outcome["fold"]["nodes"]}
            assert nodes == {"east": 1, "near": 1, "west": 3}
            assert outcome["fold"]["completion_seconds"] > 0
        assert json.loads(made.tree.clients()) == sorted(CLIENTS)
        resent = json.loads(made.tree.resent(1.0))
        assert set(resent) == {"west", "east", "near", ""}
        assert set(made.tree.worker_counters()) == {*WEST, *EAST, *NEAR}


def settled(made: Levels, number: int) -> dict[str, Any]:
    """Run rounds until all clients count; return the last outcome."""
    for later in range(number, number + 60):
        outcome = made.round(later)
        if states(outcome) == dict.fromkeys(CLIENTS, "whole"):
            assert made.bits() == mean(later, CLIENTS)
            return outcome
        made.tree.wait(len(CLIENTS), 0.5)
    raise AssertionError(outcome["participants"])


def test_a_node_below_a_middle_that_is_killed_loses_its_clients_by_name_and_comes_back() -> None:
    def before(made: Levels, client: str, number: int) -> None:
        if (client, number) == ("b", 1):
            made.kill("west-2")

    with levels(before) as made:
        outcome = made.round(1)
        left = ["a", "d", "e"]
        assert states(outcome) == {**dict.fromkeys(left, "whole"), "b": "lost", "c": "lost"}
        assert made.bits() == mean(1, left)
        reasons = {one["client"]: one["reason"] for one in outcome["participants"]}
        assert reasons["b"].startswith("its node west-2 is gone: ")
        made.start("west-2", made.urls["west"], clients=2)
        settled(made, 2)


def test_a_middle_that_is_killed_loses_all_clients_below_it_and_comes_back_with_them() -> None:
    def before(made: Levels, client: str, number: int) -> None:
        if (client, number) == ("b", 1):
            made.kill("west")

    with levels(before) as made:
        outcome = made.round(1)
        left = ["d", "e"]
        assert states(outcome) == {**dict.fromkeys("abc", "lost"), **dict.fromkeys(left, "whole")}
        assert made.bits() == mean(1, left)
        reasons = {one["client"]: one["reason"] for one in outcome["participants"]}
        assert reasons["a"].startswith("its node west is gone: ")
        made.start("west", made.tree.address, nodes=len(WEST))
        settled(made, 2)


def test_drawn_clients_take_part_below_middles_too() -> None:
    with levels(choose=3) as made:
        drawn = set()
        for number in range(1, 6):
            outcome = made.round(number)
            counted = [client for client, state in states(outcome).items() if state == "whole"]
            assert len(counted) == 3
            assert made.bits() == mean(number, sorted(counted))
            drawn |= set(counted)
        assert len(drawn) > 3


def opened(**change: Any) -> messages.Open:
    request = messages.Open({"precision": "exact"}, None, layout().tensors)
    return messages.Open(**{**vars(request), **change})


def test_a_middle_takes_part_only_below_a_dedicated_top() -> None:
    top = messages.TopOptions("sharded", {}, {})
    with pytest.raises(RoundError, match="top of the kind 'sharded'") as caught:
        MiddleNode(opened(top=top), URL, 2, Trust())
    assert caught.value.hint == 'Set tree.top = "dedicated"'


def test_a_middle_is_refused_in_a_job_with_a_goal_and_both_ends_say_so() -> None:
    options: Any = {"transport": {}, "workers": {"count": 1, "split": "ranges"}, "expected": 2, "goal": 1}
    own: Any = {"token": TOKEN, "transport": {}, "tree": True}
    tree, notes = Tree(_core.Arena(layout()), URL, 1, options, own, top="dedicated", goal=1), list[str]()
    member: Any = {"token": TOKEN, "timeout": 60.0, "transport": {}, "tree": True}
    order = {"name": "middle", "url": tree.address, "listen": URL, "nodes": 2, "options": member}
    node = Gateway(NodeOrder(**order, trust=Trust(token=TOKEN)), notes.append)
    serving = threading.Thread(target=node.serve, daemon=True)
    serving.start()
    looked: list[str] = []

    def look() -> None:
        looked.extend(tree.notes())
        if any("cannot be a node" in note for note in looked):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tree.open(look)
    why = "job.goal works only with nodes that have clients"
    assert why in looked[-1]
    assert any(note.startswith("it cannot take part") and why in note for note in notes)
    tree.close("done")
    serving.join(60)


def test_a_middle_knows_the_job_that_it_was_opened_for() -> None:
    middle = MiddleNode(opened(), URL, 2, Trust())
    assert middle.is_for(opened(listen="tcp://127.0.0.1:1"))
    assert middle.is_for(opened(options={"precision": "exact", "expected": 3}))
    assert not middle.is_for(opened(options={"precision": "f64"}))
    assert not middle.open_below(0.0)
    middle.close("done")


def test_an_answer_has_room_for_what_a_middle_passes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Path(__file__).parents[1] / "border" / "workers.json"
    text = wire.encode(wire.plain(sample.read_text())["filled"])
    one = wire.decode(answers.Workers, text)
    assert one.decisions is not None
    plans = tuple(replace(one.decisions.latest[0], number=number) for number in range(1, 65))
    full = replace(one, decisions=replace(one.decisions, count=64, latest=plans))
    middle = MiddleNode(opened(), URL, 2, Trust())
    for nodes, passed_on, latest in ((2, 2, 64), (100, 100, 5), (1000, answers.MOST_NODES, 4)):
        below = {f"node-{number}": full for number in range(nodes)}
        monkeypatch.setattr(middle, "worker_counters", lambda below=below: below)
        told = middle.counters_below()
        assert len(told) == passed_on
        for counters in told.values():
            assert counters.decisions is not None
            assert counters.decisions.count == 64
            assert [plan.number for plan in counters.decisions.latest] == list(range(65 - latest, 65))
        # The answer also names clients, and what was sent: half of its room is for those.
        assert len(wire.encode(told)) < MOST_BYTES / 2
    assert middle.notes() == ["an answer has counters of 128 nodes, and those of 872 nodes are missing"]
    middle.close("done")


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"clients": 1, "nodes": 2}, "either clients or nodes"),
        ({}, "either clients or nodes"),
        ({"nodes": 2, "listen": "grpc://127.0.0.1:1"}, "nodes connect by TCP"),
        ({"nodes": 2, "advertise": "tcp://west.example:1"}, "no clients of its own"),
    ],
)
def test_what_a_middle_cannot_be_is_refused(settings: dict[str, Any], cause: str) -> None:
    options = {"listen": "tcp://127.0.0.1:1", "parent": "tcp://127.0.0.1:2", **settings}
    with pytest.raises(PlanError, match=cause) as caught:
        run_tree_node(TreeNodeOptions(**options), lambda _: None)
    assert caught.value.hint.startswith("Give ")


def test_a_node_is_not_asked_for_the_proofs_of_other_nodes_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dishonest node says that others' clients are connected to it, and answers for all."""
    middle = MiddleNode.__new__(MiddleNode)
    nodes = [Node("honest", ["a"]), Node("dishonest", ["b"])]
    monkeypatch.setattr(Node, "connected", ["a", "b", "moved"])
    asked: dict[str, list[str]] = {}

    def answered(request: messages.Proofs, node: Node) -> Received[answers.Proofs]:
        asked[node.name] = list(request.clients)
        shown = {"a": "AAAA", "b": "AAAAA", "moved": "AAAA", "stranger": "AAAA"}
        return Received(node, answers.Proofs(proofs=shown), None, "", ())

    monkeypatch.setattr(middle, "_here", lambda: nodes, raising=False)
    monkeypatch.setattr(middle, "_ask_one", answered, raising=False)
    proofs = middle.proofs(["a", "b", "moved"])
    assert asked == {"honest": ["a", "moved"], "dishonest": ["b"]}
    assert proofs == [("a", bytes(3)), ("moved", bytes(3))], "what is no base64 is no proof"
