"""Nodes of a tree are processes: the mean has a single server's bits, and killed nodes are named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from thalweg import _core, wire
from thalweg.errors import RoundError
from thalweg.job.common.session import session
from thalweg.job.tree import root
from thalweg.job.tree.known import Node, Received
from thalweg.job.tree.local_nodes import Orders
from thalweg.job.tree.messages import Open
from thalweg.job.tree.root import Tree
from thalweg.job.tree.rounds import Done, RoundPlan, RunningRound
from thalweg.plan import Plan
from thalweg.plan.options import CoreOptions
from thalweg.transports.links import Trust
from thalweg.trees.live import Placed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers share memory as Linux alone does")

TOKEN: Final = "ab" * 32
URL: Final = "tcp://127.0.0.1:0"
PLACED: Final = {"node-1": ["a", "b"], "node-2": ["c"], "node-3": ["d", "e"]}
CLIENTS: Final = [client for clients in PLACED.values() for client in clients]
# Slightly more than one stripe of the accumulator.
ELEMENTS: Final = 40_000
TOPS: Final = ("dedicated", "first-finished", "sharded")


def layout() -> _core.Layout:
    return _core.Layout([("weight", "F32", [ELEMENTS])])


def values(number: int, client: str) -> Any:
    return np.random.default_rng((number, CLIENTS.index(client))).normal(size=ELEMENTS).astype(np.float32)


def mean(number: int, clients: list[str]) -> bytes:
    """Return the mean that a single server computes from these clients' updates."""
    arena = _core.Arena(layout())
    options = {"precision": "exact", "expected": len(clients), "enough": len(clients), "token": TOKEN}
    server = _core.Server(arena, URL, json.dumps(options))
    threads = [threading.Thread(target=take_part, args=(server.address, client)) for client in clients]
    for thread in threads:
        thread.start()
    server.wait(len(clients), 60)
    server.round(number, "{}", None)
    server.close("done")
    for thread in threads:
        thread.join()
    return bytes(np.asarray(arena))


def take_part(url: str, name: str, before: Callable[[int], None] = lambda _: None, timeout: float = 1.0) -> None:
    """Run a client until the job is over or its node is lost."""
    arena = _core.Arena(layout())
    client = _core.Client(url, name, json.dumps({"token": TOKEN, "timeout": timeout}), arena)
    try:
        client.join()
        while (task := client.next()) is not None:
            np.asarray(arena).view(np.float32)[:] = values(task[0], name)
            before(task[0])
            client.submit(task[0], 1.0 + CLIENTS.index(name), "{}")
    except _core.CoreError:
        pass
    finally:
        client.close("done")


@dataclass
class Rooted:
    """A tree and its model."""

    tree: Tree
    model: _core.Arena

    def round(self, number: int) -> dict[str, Any]:
        """Run a round; return its outcome."""
        outcome: dict[str, Any] = json.loads(self.tree.round(number, "{}", None))
        return outcome

    def bits(self) -> bytes:
        """Return the model's bytes."""
        return bytes(np.asarray(self.model))


@dataclass
class Job(Rooted):
    """A tree with its nodes' processes."""

    orders: Orders
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    # The clients that have processes of their own.
    apart: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_client(self, client: str, *, trains: bool = True) -> None:
        """Start a client in a process. Unless it ``trains``, it never sends an update."""
        before = "lambda _: None" if trains else "lambda _: sys.stdin.read()"
        call = f"take_part({self.address_of(client)!r}, {client!r}, {before}, 60.0)"
        program = f"import sys; from tests.job.test_tree import take_part; {call}"
        self.apart[client] = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, cwd=Path(__file__).parents[2]
        )

    def kill_client(self, client: str) -> None:
        """Kill a client's process. No other party gets a report, as if it were on another machine."""
        self.apart[client].kill()
        _wait(self.apart[client])

    def start(self, name: str, number: int) -> None:
        """Start a node, whose number is its seed."""
        process = subprocess.Popen(
            [sys.executable, "-m", "thalweg.job.tree.node"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        self.processes[name] = process
        assert process.stdin is not None
        order = replace(self.orders.of(name, number), clients=len(PLACED[name]))
        process.stdin.write(wire.encode(order).encode() + b"\n")
        process.stdin.close()

    def again(self, node: Node) -> bool:
        """Start an ended node again, as a run does."""
        if self.processes[node.name].poll() is None:
            return False
        self.start(node.name, 9)
        return True

    def address_of(self, client: str) -> str:
        """Return the URL of a client's node that the tree has sent."""
        node = next(node for node, clients in PLACED.items() if client in clients)
        (line,) = (line for line in self.said if line.startswith(f"{node} listens on "))
        return line.split()[3]

    def kill(self, name: str) -> None:
        """Kill a node and report its end as a run does."""
        if self.processes[name].poll() is None:
            self.kill_unseen(name)
            self.tree.lost(name, "killed by signal 9")

    def kill_unseen(self, name: str) -> None:
        """Kill a node as if it were on another machine: the tree gets no report of its end."""
        os.kill(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait()


@contextmanager
def job(
    top: str,
    before: Callable[[Job, str, int], None] = lambda *_: None,
    *,
    come: bool = False,
    timeout: float = 1.0,
    choose: int | None = None,
    goal: int | None = None,
    apart: Collection[str] = (),
    **options: Any,
) -> Iterator[Job]:
    """Run a tree. With ``come`` the run does not start the nodes; they say themselves how many clients they have.

    The clients ``apart`` have processes of their own, and never send an update unless the test starts them again.
    """
    model = _core.Arena(layout())
    node_options: Any = {
        "precision": "exact",
        "transport": {},
        "seed": 0,
        "workers": {"count": 1, "split": "ranges"},
        "grace": 0.5,
        **options,
    }
    own: CoreOptions = {"token": TOKEN, "grace": node_options["grace"], "transport": {}, "tree": True}
    nodes = len(PLACED) if come else Placed(PLACED, [])
    tree = Tree(model, URL, nodes, node_options, own, top=top, choose=choose, goal=goal)
    trust = Trust(token=TOKEN)
    with session(Plan.of({}), CLIENTS, print) as network:
        orders = Orders(tree.address, Placed(PLACED, []), lambda _: None, network, trust, trust, 0)
    made = Job(tree, model, orders)
    threads = []
    try:
        for number, name in enumerate(PLACED, 1):
            made.start(name, number)
        tree.open(lambda: None)
        made.said = tree.notes()
        for client in apart:
            made.start_client(client, trains=False)
        for client in [client for client in CLIENTS if client not in apart]:

            def own_before(number: int, client: str = client) -> None:
                before(made, client, number)

            url = made.address_of(client)
            threads.append(threading.Thread(target=take_part, args=(url, client, own_before, timeout)))
            threads[-1].start()
        while tree.wait(len(CLIENTS), None) < len(CLIENTS):
            pass
        yield made
    finally:
        tree.close("the job is over")
        for process in made.processes.values():
            process.wait(60)
        for own_process in made.apart.values():
            _wait(own_process)
        for thread in threads:
            thread.join()


def _wait(client: subprocess.Popen[bytes]) -> None:
    """Wait until a client's process has ended."""
    assert client.stdin is not None
    client.stdin.close()
    client.wait(60)


def counted(outcome: dict[str, Any]) -> set[str]:
    return {part["client"] for part in outcome["participants"] if part["state"] == "whole"}


@pytest.mark.parametrize("top", TOPS)
def test_a_tree_has_the_bits_of_one_server(top: str) -> None:
    with job(top) as made:
        for number in (1, 2):
            outcome = made.round(number)
            assert outcome["complete"], outcome["participants"]
            assert made.bits() == mean(number, CLIENTS)
            fold = outcome["fold"]
            assert fold["completion_seconds"] > 0
            assert [node["counted"] for node in fold["nodes"]] == [2, 1, 2]
        printed = json.loads(made.tree.tree() or "")
        assert (printed["nodes_used"], printed["top"], printed["workers"]) == (3, top, 3)


@pytest.mark.parametrize("top", TOPS)
def test_a_node_killed_before_its_sums_counted_loses_its_clients_by_name(top: str) -> None:
    def before(made: Job, client: str, number: int) -> None:
        if (client, number) == ("c", 1):
            made.kill("node-2")

    with job(top, before) as made:
        outcome = made.round(1)
        left = ["a", "b", "d", "e"]
        assert counted(outcome) == set(left)
        (lost,) = (part for part in outcome["participants"] if part["client"] == "c")
        assert (lost["state"], lost["reason"]) == ("lost", "its node node-2 is gone: killed by signal 9")
        assert not outcome["complete"]
        assert made.bits() == mean(1, left)
        assert counted(made.round(2)) == set(left), "the others go on"
        assert ["c", lost["reason"], False] in json.loads(made.tree.departed())


def test_nodes_may_come_by_themselves() -> None:
    with job("dedicated", come=True, expected=len(CLIENTS)) as made:
        outcome = made.round(1)
        assert outcome["complete"], outcome["participants"]
        assert made.bits() == mean(1, CLIENTS)
        assert [node["clients"] for node in outcome["fold"]["nodes"]] == [2, 1, 2]


def test_nodes_that_come_with_other_clients_than_the_job_has_are_refused() -> None:
    with (
        pytest.raises(RoundError, match="wait for 5 clients in all, and the job has 7"),
        job("dedicated", come=True, expected=7),
    ):
        pass


@pytest.mark.parametrize(("top", "come"), [("dedicated", False), ("first-finished", False), ("dedicated", True)])
def test_a_node_that_is_started_anew_is_back_in_the_next_round_with_its_clients(top: str, come: bool) -> None:
    with job(top, come=come, expected=len(CLIENTS), timeout=60.0, grace=30.0) as made:
        assert made.round(1)["complete"]
        made.tree.end_confirming(lambda: None)  # else the node may be asked, and so be missed, before the round
        made.kill_unseen("node-3")
        made.start("node-3", 9)
        outcome = made.round(2)
        assert counted(outcome) == {"a", "b", "c"}
        assert made.bits() == mean(2, ["a", "b", "c"])
        reasons = {part["reason"] for part in outcome["participants"] if part["state"] == "lost"}
        assert reasons == {"its node node-3 was started anew"}
        outcome = made.round(3)
        assert outcome["complete"], outcome["participants"]
        assert made.bits() == mean(3, CLIENTS)
        assert "node-3 is back" in made.tree.notes()
        assert json.loads(made.tree.departed()) == []


def when_answered(made: Job, do: Callable[[str, Received[Any], Any], None]) -> None:
    """Call a function with each answer that the root has received: the request's name, the answer, the request."""
    inner = made.tree.received

    def received(node: Node, reply: Any, request: Any) -> Received[Any]:
        answer = inner(node, reply, request)
        do(request.do, answer, request)
        return answer

    made.tree.received = received  # type: ignore[method-assign]


@pytest.mark.parametrize("top", ["dedicated", "first-finished"])
def test_sums_that_were_counted_outlive_their_node(top: str) -> None:
    taken: list[str] = []
    with job(top) as made:

        def do(asked: str, answer: Received[Any], request: Any) -> None:
            # With the first-finished top, the first node that finishes is the top. The next one is lost, once the top
            # or the root has its sums.
            if (asked, top) in (("take", "first-finished"), ("round", "dedicated")):
                taken.append(request.node if asked == "take" else answer.node.name)
            if len(taken) == (1 if top == "first-finished" else 3):
                made.kill(taken[0])

        when_answered(made, do)
        outcome = made.round(1)
        assert outcome["complete"]
        assert made.bits() == mean(1, CLIENTS)


def test_another_node_takes_the_place_of_a_top_that_is_lost() -> None:
    taken: list[str] = []
    tops: list[str] = []
    with job("first-finished") as made:

        def do(asked: str, answer: Received[Any], request: Any) -> None:
            if asked == "lead":
                tops.append(answer.node.name)
            if asked == "take":
                taken.append(request.node)
                if len(taken) == 2:
                    made.kill(tops[0])

        when_answered(made, do)
        outcome = made.round(1)
        left = [client for client in CLIENTS if client not in PLACED[tops[0]]]
        assert counted(outcome) == set(left)
        assert made.bits() == mean(1, left)
        assert outcome["fold"]["top"] in taken[:2]


@pytest.mark.parametrize("top", TOPS)
def test_a_round_with_too_few_updates_leaves_the_model(top: str) -> None:
    def before(made: Job, client: str, _: int) -> None:
        if client == "c":
            made.kill("node-2")

    with job(top, before, enough=5) as made:
        bits = made.bits()
        with pytest.raises(RoundError, match=r"has 4 updates, and needs 5 \(node-2: its node node-2 is gone"):
            made.round(1)
        assert made.bits() == bits


@pytest.mark.parametrize(("enough", "grace"), [(5, 30.0), (4, 0.5)])
def test_nodes_wait_through_an_outage_if_the_job_needs_all_clients(
    monkeypatch: pytest.MonkeyPatch, enough: int, grace: float
) -> None:
    asked: list[CoreOptions] = []

    def opening(options: CoreOptions, *rest: Any) -> Open:
        asked.append(options)
        return Open(options, *rest)

    monkeypatch.setattr(root, "Open", opening)
    with job("dedicated", enough=enough, expected=len(CLIENTS), outage=30.0):
        assert [(options["grace"], options["outage"]) for options in asked] == [(grace, 0.0)] * len(PLACED)


@dataclass
class Opening:
    """The root's server, which calls a function before it sends the first request of a name."""

    server: _core.TaskServer
    asked: str
    do: Callable[[], None]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.server, name)

    def open(self, head: bytes, *rest: Any) -> int:
        if json.loads(head)["do"] == self.asked:
            self.asked = ""
            self.do()
        return self.server.open(head, *rest)


def at(made: Job, step: str, nth: int, do: Callable[[], None]) -> None:
    """Call a function when the ``nth`` answer to a step of a sharded top has arrived; with 0, before the first one."""
    if nth == 0:
        made.tree._server = Opening(made.tree._server, step, do)  # type: ignore[assignment]
        return
    seen: list[str] = []

    def answered(asked: str, answer: Received[Any], _: Any) -> None:
        if asked == step:
            seen.append(answer.node.name)
            if len(seen) == nth:
                do()

    when_answered(made, answered)


STEPS: Final = [("share", 0), ("share", 1), ("settle", 0), ("settle", 1), ("settle", 2), ("told", 0), ("told", 1)]


@pytest.mark.parametrize(("step", "nth"), STEPS)
def test_a_sharded_mean_is_of_the_same_updates_everywhere_whoever_is_lost(step: str, nth: int) -> None:
    with job("sharded") as made:
        first = made.round(1)
        assert first["complete"]
        at(made, step, nth, lambda: made.kill("node-2"))
        outcome = made.round(2)
        left = sorted(counted(outcome))
        # The root may have received the node's part of the mean before the node was lost. The model is too small for
        # three parts, so the last node to finish has none; it is no longer needed when the others have its sums.
        assert left in (["a", "b", "d", "e"], CLIENTS)
        has_part = "node-2" in [share["node"] for share in outcome["fold"]["shares"]]
        assert left != CLIENTS or not has_part or (step, nth) not in (("share", 0), ("share", 1), ("settle", 0))
        assert left == CLIENTS or step != "told"
        assert made.bits() == mean(2, left)
        for part in outcome["participants"]:
            if part["client"] == "c" and part["state"] == "lost":
                assert part["reason"] == "its node node-2 is gone: killed by signal 9"
        outcome = made.round(3)
        assert counted(outcome) == {"a", "b", "d", "e"}
        assert made.bits() == mean(3, ["a", "b", "d", "e"])


def test_a_sharded_mean_goes_from_node_to_node() -> None:
    with job("sharded", precision="f32") as made:
        update = len(made.bits())
        crossed = [made.round(number)["fold"]["between_bytes"] / update for number in (1, 2)]
        # Each of three nodes sends two thirds of its sums to the others, and then its third of the mean to two nodes
        # and the root. In the first round the root also sends the model to each node.
        assert crossed == pytest.approx([3 + 5, 5], rel=0.05)
        shares = made.round(3)["fold"]["shares"]
        assert sum(share["bytes"] for share in shares) == update


def test_a_node_without_sums_gets_the_sharded_mean_too() -> None:
    def before(made: Job, client: str, number: int) -> None:
        if (client, number) == ("c", 1):
            made.tree.forget("c", "it was told to")

    with job("sharded", before) as made:
        assert counted(made.round(1)) == {"a", "b", "d", "e"}
        assert {node.name for node in made.tree._nodes if node.has is not None} == set(PLACED)
        assert counted(made.round(2)) >= {"a", "b", "d", "e"}


def test_after_a_round_that_failed_each_node_is_sent_the_model() -> None:
    kept: list[bool] = []

    def do(asked: str, _: Received[Any], request: Any) -> None:
        if asked == "round":
            kept.append(request.kept)

    with job("sharded") as made:
        when_answered(made, do)
        made.round(1)
        inner = made.tree._run

        def run(number: int, config: str, tend: Callable[[], None]) -> Done:
            inner(number, config, tend)
            raise RoundError("it fails after the nodes have written a mean", "")

        made.tree._run = run  # type: ignore[method-assign]
        with pytest.raises(RoundError, match="it fails"):
            made.round(2)
        made.tree._run = inner  # type: ignore[method-assign]
        assert made.round(3)["complete"]
        assert kept == [False] * 3 + [True] * 3 + [False] * 3


@pytest.mark.parametrize("top", TOPS)
def test_a_lost_node_is_back_in_the_next_round_with_its_clients(top: str) -> None:
    def before(made: Job, client: str, number: int) -> None:
        if (client, number) == ("c", 1):
            made.kill("node-2")

    with job(top, before, timeout=60.0, grace=30.0) as made:
        made.tree.recovery.restart = made.again
        outcome = made.round(1)
        assert counted(outcome) == {"a", "b", "d", "e"}
        assert made.bits() == mean(1, ["a", "b", "d", "e"])
        outcome = made.round(2)
        assert outcome["complete"], outcome["participants"]
        assert made.bits() == mean(2, CLIENTS)
        assert json.loads(made.tree.departed()) == []
        assert any(note.startswith("node-2 listens on ") for note in made.tree.notes())


@pytest.mark.parametrize("top", TOPS)
def test_updates_that_were_counted_before_their_node_was_lost_are_not_folded_twice(top: str) -> None:
    with job(top, timeout=60.0, grace=30.0) as made:
        made.tree.recovery.restart = made.again
        inner = made.tree._run

        def run(number: int, config: str, tend: Callable[[], None]) -> Done:
            done = inner(number, config, tend)
            made.kill("node-2")
            return done

        made.tree._run = run  # type: ignore[method-assign]
        outcome = made.round(1)
        assert outcome["complete"]
        assert made.bits() == mean(1, CLIENTS)
        made.tree._run = inner  # type: ignore[method-assign]
        outcome = made.round(2)
        assert outcome["complete"], outcome["participants"]
        assert made.bits() == mean(2, CLIENTS)


def test_a_node_that_cannot_be_started_again_stays_lost() -> None:
    def before(made: Job, client: str, number: int) -> None:
        if (client, number) == ("c", 1):
            made.kill("node-2")

    with job("dedicated", before) as made:
        asked: list[str] = []

        def restart(node: Node) -> bool:
            asked.append(node.name)
            return False

        made.tree.recovery.restart = restart
        assert set(made.tree.worker_counters()) == set(PLACED)
        made.round(1)
        assert counted(made.round(2)) == {"a", "b", "d", "e"}
        assert set(asked) == {"node-2"}
        assert set(made.tree.worker_counters()) == {"node-1", "node-3"}
        assert json.loads(made.tree.tree() or "")["workers"] == 3, "what it did still counts"


def test_the_end_of_a_nodes_process_is_the_reason_even_if_its_link_broke_later(monkeypatch: pytest.MonkeyPatch) -> None:
    options: Any = {"transport": {}, "workers": {"count": 1, "split": "ranges"}}
    own: CoreOptions = {"token": TOKEN, "grace": 0.2, "transport": {}, "tree": True}
    tree = Tree(
        _core.Arena(layout()), URL, Placed({"node-1": ["a"], "node-2": ["b"]}, []), options, own, top="dedicated"
    )

    def there(_seconds: float) -> bool:
        """Lose a node that is not opened yet, then report that all nodes have joined."""
        tree.lost("node-1", "killed by signal 9")
        return True

    def look() -> None:
        notes.extend(tree.notes())
        if notes:
            raise KeyboardInterrupt

    notes: list[str] = []
    monkeypatch.setattr(tree, "_there", there)
    tree.recovery.is_over = lambda node: node.name == "node-1"
    try:
        with pytest.raises(KeyboardInterrupt):
            tree.open(look)
    finally:
        tree.close("the test is over")
    assert notes == ["node-1 is gone: killed by signal 9, before it was open; its clients get other nodes"]


@pytest.mark.parametrize("top", TOPS)
def test_clients_of_a_node_that_does_not_come_back_go_on_at_others(top: str) -> None:
    def before(made: Job, client: str, number: int) -> None:
        if (client, number) == ("d", 2):
            made.kill("node-3")

    with job(top, before, timeout=60.0, grace=30.0) as made:
        made.tree.recovery.is_over = lambda _: True
        assert made.round(1)["complete"]
        outcome = made.round(2)
        assert counted(outcome) == {"a", "b", "c"}
        assert made.bits() == mean(2, ["a", "b", "c"])
        outcome = made.round(3)
        assert outcome["complete"], outcome["participants"]
        assert [node["node"] for node in outcome["fold"]["nodes"]] == ["node-1", "node-2"]
        assert sum(node["counted"] for node in outcome["fold"]["nodes"]) == len(CLIENTS)
        assert made.bits() == mean(3, CLIENTS)
        assert json.loads(made.tree.departed()) == []
        made.kill("node-2")
        outcome = made.round(4)
        assert outcome["complete"], outcome["participants"]
        assert made.bits() == mean(4, CLIENTS), "they all are at one node"


@pytest.mark.parametrize("top", ["dedicated", "first-finished"])
def test_updates_that_count_are_answered_at_the_new_node_and_not_folded_again(top: str) -> None:
    with job(top, timeout=60.0, grace=30.0) as made:
        made.tree.recovery.is_over = lambda _: True
        inner = made.tree._run

        def run(number: int, config: str, tend: Callable[[], None]) -> Done:
            done = inner(number, config, tend)
            made.kill("node-3")
            return done

        made.tree._run = run  # type: ignore[method-assign]
        assert made.round(1)["complete"]
        assert made.bits() == mean(1, CLIENTS)
        made.tree._run = inner  # type: ignore[method-assign]
        outcome = made.round(2)
        assert outcome["complete"], outcome["participants"]
        assert made.bits() == mean(2, CLIENTS)


def test_a_node_that_is_away_too_long_loses_its_clients_to_others() -> None:
    with job("dedicated", come=True, expected=len(CLIENTS), timeout=60.0, grace=30.0) as made:
        assert made.round(1)["complete"]
        made.tree.recovery.away = 0.0
        made.kill_unseen("node-1")
        outcome = made.round(2)
        assert counted(outcome) <= set(CLIENTS)
        outcome = made.round(3)
        assert outcome["complete"], outcome["participants"]
        assert made.bits() == mean(3, CLIENTS)


def test_a_client_whose_process_has_ended_moves_nowhere() -> None:
    def before(made: Job, client: str, number: int) -> None:
        if (client, number) == ("e", 1):
            made.tree.forget("e", "killed")
            raise _core.CoreError("its process has ended")

    with job("dedicated", before, timeout=60.0, grace=30.0) as made:
        made.tree.recovery.is_over = lambda _: True
        assert counted(made.round(1)) == {"a", "b", "c", "d"}
        made.kill("node-3")
        outcome = made.round(2)
        assert counted(outcome) == {"a", "b", "c", "d"}
        assert made.bits() == mean(2, ["a", "b", "c", "d"])
        (ended,) = (part for part in outcome["participants"] if part["client"] == "e")
        assert ended["reason"] == "it was not there"


def test_some_clients_take_part_over_all_nodes_and_no_more_are_counted() -> None:
    with job("dedicated", choose=3) as made:
        chosen = []
        for number in (1, 2, 3, 4):
            outcome = made.round(number)
            took = counted(outcome)
            assert (len(took), outcome["expected"], outcome["complete"]) == (3, 3, True)
            assert {part["client"] for part in outcome["participants"]} == took
            assert made.bits() == mean(number, sorted(took))
            chosen.append(frozenset(took))
        assert len(set(chosen)) > 1, "each round draws its own"


def test_others_are_drawn_in_place_of_clients_whose_node_is_lost() -> None:
    killed: list[str] = []

    def before(made: Job, client: str, number: int) -> None:
        if number == 2 and not killed:
            killed.append(next(node for node, clients in PLACED.items() if client in clients))
            made.kill(killed[0])

    with job("dedicated", before, timeout=60.0, choose=2, grace=30.0) as made:
        made.tree.recovery.is_over = lambda _: True
        assert made.round(1)["complete"]
        outcome = made.round(2)
        took = counted(outcome)
        assert (len(took), outcome["complete"]) == (2, True), outcome["participants"]
        assert made.bits() == mean(2, sorted(took))
        lost = [part for part in outcome["participants"] if part["state"] == "lost"]
        assert lost
        assert all(part["reason"] == f"its node {killed[0]} is gone: killed by signal 9" for part in lost)
        outcome = made.round(3)
        assert (len(counted(outcome)), outcome["complete"]) == (2, True)
        assert made.bits() == mean(3, sorted(counted(outcome)))


def test_a_round_learns_that_a_clients_process_has_ended_though_its_nodes_are_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[set[str]] = []

    class Machine:
        def __init__(self, *_: object) -> None:
            """Take what a round is told at first."""

        def update(self, _now: float, _table: str, ended: set[str]) -> None:
            told.append(set(ended))

    model = _core.Arena(layout())
    options: Any = {"transport": {}, "workers": {"count": 1, "split": "ranges"}}
    monkeypatch.setattr(_core, "TreeRound", Machine)
    own: CoreOptions = {"token": TOKEN, "grace": 0.2, "transport": {}, "tree": True}
    tree = Tree(model, URL, Placed({"node-1": ["a", "b"]}, []), options, own, top="sharded")
    plan = RoundPlan(number=1, config="{}", top="sharded", enough=1, draw=None, placed=True, proofs=False)
    try:
        running = RunningRound(tree, tree._server, model, 1, plan=plan, top={})
        running._update()
        assert told == [set()], "nothing is new"
        # The node does not say yet that the client is gone.
        monkeypatch.setattr(tree, "_ask_all", lambda *_: None)
        tree.forget("a", "killed")
        running._update()
        running._update()
        assert told == [set(), {"a"}]
    finally:
        tree.close("the test is over")


def test_a_round_counts_all_that_there_are_if_these_are_fewer() -> None:
    def before(made: Job, client: str, number: int) -> None:
        if (client, number) in (("e", 1), ("a", 1)):
            made.tree.forget(client, "killed")
            raise _core.CoreError("its process has ended")

    with job("dedicated", before, choose=4, grace=0.5) as made:
        outcome = made.round(1)
        assert counted(outcome) == {"b", "c", "d"}
        assert (outcome["expected"], outcome["complete"]) == (4, False)
        assert made.bits() == mean(1, ["b", "c", "d"])
