"""Tasks: heads and tensors to named members, and their results, over real links."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import thalweg
from thalweg import _core, tasks
from thalweg.errors import ModelError, PlanError
from thalweg.tasks import Given, TaskClient, TaskServer, Tensors
from thalweg.tensors import named
from thalweg.tensors.arena import Arena
from thalweg.tensors.named import Received
from thalweg.transports import pki

# Seconds after which a hanging test fails.
LIMIT = 60.0
Work = Callable[[Given], Any]


class Members:
    """Members of a task server, each in a thread. The threads end when the server ends."""

    def __init__(self, stack: ExitStack, server: TaskServer) -> None:
        self._stack, self._server = stack, server
        self.clients: dict[str, TaskClient] = {}

    def add(self, name: str, work: Work, **options: Any) -> None:
        client = TaskClient(self._server.address, name=name, **options)
        thread = threading.Thread(target=client.run, args=(work,), daemon=True)
        thread.start()
        self.clients[name] = client
        self._stack.callback(thread.join, LIMIT)


@pytest.fixture
def server() -> Iterator[TaskServer]:
    with TaskServer(grace=1.0) as server:
        yield server


@pytest.fixture
def members(server: TaskServer) -> Iterator[Members]:
    with ExitStack() as stack:
        yield Members(stack, server)
        server.close()


def double(task: Given) -> Any:
    return {"of": task.head}, {name: 2 * array for name, array in task.tensors.items()}, 3.0


def test_a_task_goes_to_members_and_comes_back(server: TaskServer, members: Members) -> None:
    members.add("anna", double)
    members.add("ben", lambda task: {"sum": float(task.tensors["w"].sum())})
    assert server.wait(2, LIMIT) == 2
    task = server.send({"do": "it"}, {"w": np.arange(6.0).reshape(2, 3), "n": np.array(5)})
    replies = task.replies()
    assert sorted(replies) == ["anna", "ben"]
    assert all(reply.done for reply in replies.values())
    assert replies["anna"].head == {"of": {"do": "it"}}
    assert replies["anna"].weight == 3.0
    np.testing.assert_array_equal(replies["anna"].tensors["w"], [[0, 2, 4], [6, 8, 10]])
    assert replies["anna"].tensors["n"] == 10
    assert replies["ben"].head == {"sum": 15.0}
    assert not replies["ben"].tensors
    ways = [(way["direction"], way["bytes"]) for way in replies["anna"].transfers]
    assert ways == [("down", 72), ("up", 72)]


def test_the_tensors_of_a_task_can_be_the_result(server: TaskServer, members: Members) -> None:
    members.add("anna", lambda task: (None, task.tensors))
    server.wait(1, LIMIT)
    for tensors in ({"w": np.arange(6.0).reshape(2, 3), "n": np.array(5)}, {}):
        reply = server.send(None, tensors).replies()["anna"]
        assert sorted(reply.tensors) == sorted(tensors)
        for name, array in tensors.items():
            np.testing.assert_array_equal(reply.tensors[name], array)


def test_a_result_that_is_not_finite_is_refused_and_the_others_are_folded(server: TaskServer, members: Members) -> None:
    def gives(array: Any) -> Work:
        return lambda task: (None, {"w": array})

    bad = np.ones(1 << 20, np.float32)
    bad[-1] = np.inf
    members.add("anna", gives(bad))
    members.add("ben", gives(np.full(1 << 20, 2, np.float32)))
    server.wait(2, LIMIT)
    task = server.send(None, {"w": np.zeros(1 << 20, np.float32)}, reduce="mean")
    assert (task.mean()["w"] == 2).all()
    refused = task.replies()["anna"]
    assert refused.state == "failed"
    assert "cannot be folded" in (refused.reason or "")


def test_scalars_of_numpy_in_heads_become_numbers(server: TaskServer, members: Members) -> None:
    members.add("anna", lambda task: {"of": task.head, "loss": np.float32(0.5), "n": [np.int64(7)]})
    server.wait(1, LIMIT)
    reply = server.send({"lr": np.float32(0.25), "on": np.bool_(True)}).replies()["anna"]
    assert reply.head == {"of": {"lr": 0.25, "on": True}, "loss": 0.5, "n": [7]}


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"[" * 100_000, "recursion limit"),
        (b'{"a":' * 100_000, "recursion limit"),
        (b"1" * 5000, "out of range"),
        (b"[1e999]", "too large"),
        (b'{"loss": NaN}', "no JSON"),
        (b"\xff", "no JSON"),
    ],
)
def test_a_head_that_cannot_be_read_is_its_members_failure_alone(
    server: TaskServer, members: Members, head: bytes, why: str
) -> None:
    def lie(task: Given) -> None:
        task._core.answer(task.number, head, None, 1.0)

    members.add("anna", lambda task: task.head)
    members.add("mallory", lie)
    server.wait(2, LIMIT)
    for number in (1, 2):
        replies = server.send(number).replies()
        assert replies["anna"].head == number
        assert (replies["mallory"].state, replies["mallory"].head) == ("failed", None)
        assert "its head cannot be read" in (replies["mallory"].reason or "")
        assert why in (replies["mallory"].reason or "")


def test_a_result_that_cannot_be_sent_is_refused_with_the_reason(server: TaskServer, members: Members) -> None:
    members.add("anna", lambda task: {"loss": float("nan")} if task.head else {"loss": 0.5})
    server.wait(1, LIMIT)
    refused = server.send(True).replies()["anna"]
    assert refused.state == "failed"
    assert "the head is no JSON" in (refused.reason or "")
    assert server.send(False).replies()["anna"].head == {"loss": 0.5}
    with pytest.raises(PlanError, match="finite numbers"):
        server.send(float("inf"))


def test_results_of_any_layout_even_from_round_to_round(server: TaskServer, members: Members) -> None:
    members.add("anna", lambda task: (None, {f"x{task.head}": np.ones(task.head, np.float32)}))
    server.wait(1, LIMIT)
    for length in (1, 1000, 3):
        reply = server.send(length, {"w": np.zeros(length)}).replies()["anna"]
        assert {name: array.shape for name, array in reply.tensors.items()} == {f"x{length}": (length,)}


def test_a_mean_is_by_weight_and_of_the_tensors_that_return(server: TaskServer, members: Members) -> None:
    def gives(value: float, weight: float) -> Work:
        return lambda _: (None, {"w": np.full(4, value, np.float32)}, weight)

    members.add("anna", gives(1.0, 1.0))
    members.add("ben", gives(4.0, 2.0))
    server.wait(2, LIMIT)
    shared = Tensors({"w": np.zeros(4, np.float32), "private": np.zeros(9)})
    task = server.send(None, shared, reduce="mean", returns=["w"])
    mean = task.mean()
    assert list(mean) == ["w"]
    np.testing.assert_array_equal(mean["w"], np.full(4, 3.0))
    assert all(not reply.tensors for reply in task.replies().values()), "they were folded"


def test_the_same_tensors_move_once(server: TaskServer, members: Members) -> None:
    members.add("anna", double)
    server.wait(1, LIMIT)
    tensors = Tensors({"w": np.ones(100_000)})
    moved = [
        sum(
            way["wire_bytes"]
            for way in server.send(None, tensors).replies()["anna"].transfers
            if way["direction"] == "down"
        )
        for _ in range(3)
    ]
    assert moved[0] > 800_000
    assert max(moved[1:]) < 10_000, moved


def test_a_mean_is_of_the_tensors_that_results_have_and_is_sent_on(server: TaskServer, members: Members) -> None:
    def work(task: Given) -> Any:
        if not task.tensors:
            return None, {"0": np.full(3, task.head, np.float32), "1": np.array([1.5])}, float(task.head)
        return {name: array.tolist() for name, array in task.tensors.items()}

    members.add("anna", work)
    server.wait(1, LIMIT)
    task = server.send(2, reduce="mean", returns={"0": ("F32", [3]), "1": ("F64", [1])})
    assert task.replies()["anna"].done
    mean = task.mean_tensors()
    np.testing.assert_array_equal(task.mean()["0"], [2, 2, 2])
    assert server.send(None, mean).replies()["anna"].head == {"0": [2, 2, 2], "1": [1.5]}
    with pytest.raises(ValueError, match="read-only"):
        mean["0"][0] = 1


def test_an_arena_is_sent_as_it_is(server: TaskServer, members: Members) -> None:
    members.add("anna", lambda task: task.tensors["w"].tolist())
    server.wait(1, LIMIT)
    arena = Tensors({"w": np.arange(3)}).arena
    sent = Tensors.of(arena)
    assert sent.arena is arena
    assert server.send(None, sent).replies()["anna"].head == [0, 1, 2]


def test_whoever_fails_is_away_or_late_has_a_state_and_a_reason(server: TaskServer, members: Members) -> None:
    release = threading.Event()

    def fails(task: Given) -> Any:
        raise ValueError("no data here")

    members.add("fails", fails)
    members.add("slow", lambda task: release.wait(LIMIT))
    members.add("fine", lambda task: 1)
    server.wait(3, LIMIT)
    task = server.send(None, to=["fails", "slow", "fine", "never"], deadline=3.0)
    states = {name: (reply.state, reply.reason) for name, reply in task.replies().items()}
    release.set()
    assert states["fine"] == ("done", None)
    assert states["fails"] == ("failed", "ValueError: no data here")
    assert states["never"][0] == "lost"
    assert "was not there" in (states["never"][1] or "")
    assert states["slow"][0] == "late"
    assert "working" in (states["slow"][1] or "")


def test_a_process_that_leaves_is_lost(server: TaskServer, members: Members) -> None:
    client = TaskClient(server.address, name="anna")
    server.wait(1, LIMIT)
    task = server.send(None, to="anna")
    next(client)
    client.close("has to go")
    reply = task.replies()["anna"]
    assert reply.state == "lost"
    assert "has to go" in (reply.reason or "")
    assert server.absent()["anna"].endswith("has to go")


def test_tasks_from_many_threads(server: TaskServer, members: Members) -> None:
    for number in range(3):
        members.add(f"m{number}", double)
    server.wait(3, LIMIT)
    seen: list[float] = []

    def ask(value: int) -> None:
        replies = server.send(value, {"w": np.full(1000, value, np.float32)}).replies()
        seen.append(sum(float(reply.tensors["w"][0]) for reply in replies.values()))

    threads = [threading.Thread(target=ask, args=(value,)) for value in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert sorted(seen) == [6.0 * value for value in range(40)]


def test_a_cancelled_task_is_over_for_its_member(server: TaskServer, members: Members) -> None:
    client = TaskClient(server.address, name="anna")
    server.wait(1, LIMIT)
    task = server.send(None, {"w": np.ones(10)})
    received = next(client)
    task.cancel()
    assert task.replies()["anna"].state == "cancelled"
    server.send("next")
    assert next(client).head == "next"
    assert received.over
    received.answer("too late")
    client.close()


def test_a_waiting_call_ends_when_either_end_is_closed() -> None:
    server = TaskServer()
    client = TaskClient(server.address, name="anna")
    server.wait(1, LIMIT)
    ended: dict[str, Any] = {}
    task = server.send(None)
    waits = [
        threading.Thread(target=lambda: ended.update(reply=task.replies()["anna"].state)),
        threading.Thread(target=lambda: ended.update(tasks=[given.head for given in client])),
    ]
    for wait in waits:
        wait.start()
    idle = TaskClient(server.address, name="ben")
    waits.append(threading.Thread(target=lambda: ended.update(idle=list(idle))))
    waits[-1].start()
    idle.close()
    server.close()
    for wait in waits:
        wait.join(LIMIT)
    assert ended == {"reply": "cancelled", "tasks": [None], "idle": []}
    client.close()
    server.close()


class Answered:
    """A fake core whose task has been answered. ``heard``: the server has received the answer, so the task is over."""

    def __init__(self, *, heard: bool) -> None:
        self.heard = heard

    def is_open(self, task: int) -> bool:
        return not self.heard

    def answer(self, task: int, *_: Any) -> None:
        raise _core.CoreError(f"answer task: task {task} is not being worked on: it is over, or was answered before")

    refuse = answer


@pytest.mark.parametrize("again", [Given.answer, lambda given: given.refuse("not today")])
def test_a_second_answer_is_an_error_while_the_first_is_on_its_way(again: Callable[[Given], None]) -> None:
    # With a real server the case depends on timing. A test of the state machine has both in virtual time
    # (crates/proto/tests/machines/tasks.rs).
    def given(core: Any) -> Given:
        return Given(core, 7, b"", None, None)

    with pytest.raises(_core.CoreError, match=r"task 7 .* was answered before"):
        again(given(Answered(heard=False)))
    again(given(Answered(heard=True)))


def test_tensors_of_a_task_are_read_only_and_a_refused_task_ends(server: TaskServer, members: Members) -> None:
    client = TaskClient(server.address, name="anna")
    server.wait(1, LIMIT)
    task = server.send(None, {"w": np.ones(10)})
    received = next(client)
    assert not received.over
    with pytest.raises(ValueError, match="read-only"):
        received.tensors["w"][0] = 1
    received.refuse("not today")
    reply = task.replies()["anna"]
    assert (reply.state, reply.reason) == ("failed", "not today")
    client.close()


def test_torch_tensors_travel(server: TaskServer, members: Members) -> None:
    members.add("anna", lambda task: (None, {"w": task.tensors["w"] * 2, "n": np.ones(2)}))
    server.wait(1, LIMIT)
    module = torch.nn.Linear(3, 2)
    reply = server.send(None, {"w": module.weight, "b": torch.ones(2)}).replies()["anna"]
    assert type(reply.tensors["w"]) is torch.Tensor
    torch.testing.assert_close(reply.tensors["w"], 2 * module.weight.detach())
    assert type(reply.tensors["n"]) is np.ndarray, "each as what the sender had"


NARROW = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float16]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_narrow_floats_of_pytorch_are_the_values_that_were_sent(
    server: TaskServer, members: Members, dtype: torch.dtype
) -> None:
    def work(task: Given) -> Any:
        w = task.tensors["w"]
        return {"dtype": str(w.dtype), "mean": float(w.float().mean())}, {"w": (w.float() * 2).to(w.dtype)}

    members.add("anna", work)
    server.wait(1, LIMIT)
    reply = server.send(None, {"w": torch.tensor([0.5, 1.0, 1.5]).to(dtype)}).replies()["anna"]
    assert reply.head == {"dtype": str(dtype), "mean": 1.0}
    assert reply.tensors["w"].dtype == dtype
    assert reply.tensors["w"].float().tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_floats_of_numpy_are_the_values_that_were_sent(server: TaskServer, members: Members, name: str) -> None:
    def work(task: Given) -> Any:
        w = task.tensors["w"]
        return {"dtype": str(w.dtype), "mean": float(w.astype(np.float32).mean())}, {"w": w + w}

    members.add("anna", work)
    server.wait(1, LIMIT)
    reply = server.send(None, {"w": np.array([0.5, 1.0, 1.5], getattr(ml_dtypes, name))}).replies()["anna"]
    assert reply.head == {"dtype": name, "mean": 1.0}
    assert reply.tensors["w"].dtype == getattr(ml_dtypes, name)
    assert reply.tensors["w"].astype(np.float32).tolist() == [1.0, 2.0, 3.0]


def test_a_mean_of_bfloat16_is_one(server: TaskServer, members: Members) -> None:
    def gives(value: int) -> Work:
        def work(task: Given) -> Any:
            w = task.tensors["w"]
            return None, {"w": w * value if isinstance(w, torch.Tensor) else np.full(w.shape, value, w.dtype)}

        return work

    members.add("anna", gives(1))
    members.add("ben", gives(3))
    server.wait(2, LIMIT)
    mean = server.send(None, {"w": torch.ones(3, dtype=torch.bfloat16)}, reduce="mean").mean()["w"]
    assert mean.dtype == torch.bfloat16
    assert mean.float().tolist() == [2.0] * 3
    mean = server.send(None, {"w": np.ones(3, ml_dtypes.bfloat16)}, reduce="mean").mean()["w"]
    assert mean.dtype == ml_dtypes.bfloat16
    assert mean.astype(np.float32).tolist() == [2.0] * 3


def test_what_a_member_does_to_tensors_of_pytorch_reaches_no_later_task(server: TaskServer, members: Members) -> None:
    """PyTorch has no read-only tensors, so a member gets copies. If it sends one back, its changes are sent."""

    def work(task: Given) -> Any:
        task.tensors["w"].add_(1)
        return None, task.tensors

    members.add("anna", work)
    server.wait(1, LIMIT)
    shared = Tensors({"w": torch.zeros(3), "b": torch.ones(1)})
    for _ in range(2):
        reply = server.send(None, shared).replies()["anna"]
        assert reply.tensors["w"].tolist() == [1.0] * 3
        assert reply.tensors["b"].tolist() == [1.0]


def test_a_head_may_use_the_key_that_is_thalwegs(server: TaskServer, members: Members) -> None:
    members.add("anna", lambda task: (task.head, task.tensors))
    server.wait(1, LIMIT)
    heads: list[dict[str, Any]] = [{"thalweg": 1, "head": 2}, {"thalweg": {"torch": ["w"]}}, {"thalweg": {}, "x": None}]
    for head in heads:
        for tensors in ({}, {"w": np.ones(1)}, {"w": torch.ones(1)}, {"w": torch.ones(1), "v": np.ones(1)}):
            reply = server.send(head, tensors).replies()["anna"]
            assert reply.head == head
            assert {name: type(one) for name, one in reply.tensors.items()} == {
                name: type(one) for name, one in tensors.items()
            }


@pytest.mark.parametrize("own", [None, 7, "torch", [], {"torch": "w"}, {"torch": {"w": 1}}, {"torch": [["w"], 3, "x"]}])
def test_what_a_peer_says_of_its_tensors_is_checked(own: Any) -> None:
    arena = Arena(_core.Arena(_core.Layout([("w", "F32", [2])])))
    head, tensors = tasks._received(json.dumps({"thalweg": own, "head": 5}).encode(), arena.core, shared=True)
    assert head == (5 if isinstance(own, dict) else {"thalweg": own, "head": 5})
    assert type(tensors["w"]) is np.ndarray


def test_without_pytorch_its_tensors_are_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "_has_torch", lambda: False)
    came = Received(Tensors({"w": torch.ones(2, dtype=torch.bfloat16)}).arena, ["w"], shared=True)
    assert came["w"].dtype == ml_dtypes.bfloat16
    assert came["w"].astype(float).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("empty", [np.zeros((0, 3), np.float32), torch.zeros(2, 0)], ids=["numpy", "torch"])
def test_tensors_without_elements_arrive_with_their_names_and_shapes(
    server: TaskServer, members: Members, empty: Any
) -> None:
    def work(task: Given) -> Any:
        return {name: list(one.shape) for name, one in task.tensors.items()}, {"e": empty, "f": empty}

    members.add("anna", work)
    server.wait(1, LIMIT)
    named = Tensors({"a": empty})
    for tensors in (named, named, {"a": empty, "w": np.ones(1)}):  # twice, and together with a tensor that has bytes
        reply = server.send(None, tensors).replies()["anna"]
        assert reply.head == {"a": list(empty.shape)} | ({"w": [1]} if "w" in tensors else {})
        assert {name: one.shape for name, one in reply.tensors.items()} == {"e": empty.shape, "f": empty.shape}
        assert {type(one) for one in reply.tensors.values()} == {type(empty)}
    members.add("ben", lambda task: (None, task.tensors))
    server.wait(2, LIMIT)
    reply = server.send(None, named, to="ben").replies()["ben"]
    assert list(reply.tensors) == ["a"]


def test_a_mean_of_tensors_without_elements_is_one(server: TaskServer, members: Members) -> None:
    members.add("anna", lambda task: (None, task.tensors))
    server.wait(1, LIMIT)
    task = server.send(None, {"a": np.zeros((0, 3), np.float32)}, reduce="mean")
    assert task.mean()["a"].shape == (0, 3)
    assert not task.replies()["anna"].tensors, "it was folded"


def test_arrays_with_bytes_in_another_order_are_converted(server: TaskServer, members: Members) -> None:
    members.add(
        "anna", lambda task: (None, {name: one.astype(one.dtype.newbyteorder()) for name, one in task.tensors.items()})
    )
    server.wait(1, LIMIT)
    sent = {"w": np.array([1.5, -2.0], ">f4"), "n": np.array([1, 256], ">i8")}
    reply = server.send(None, sent).replies()["anna"]
    for name, array in sent.items():
        assert reply.tensors[name].dtype.isnative
        np.testing.assert_array_equal(reply.tensors[name], array)


def test_what_cannot_be_sent_is_said_with_the_hint(server: TaskServer) -> None:
    with pytest.raises(PlanError, match="no JSON"):
        server.send({"x": object()}, to="anna")
    with pytest.raises(ModelError):
        server.send(None, {"w": np.array(["text"])}, to="anna")
    with pytest.raises(PlanError, match="it has none"):
        server.send(None, to="anna", reduce="mean")
    with pytest.raises(PlanError, match="'v' is none of the task's tensors"):
        server.send(None, {"w": np.ones(1)}, to="anna", reduce="mean", returns=["v"])
    for missing, words in ((1.5, "1.5 is no share"), ({"v": 0.5}, "'v' is none of the results' tensors")):
        with pytest.raises(PlanError, match=words):
            server.send(None, {"w": np.ones(1)}, to="anna", reduce="mean", missing=missing)
    with pytest.raises(PlanError, match="only of results that are folded"):
        server.send(None, {"w": np.ones(1)}, to="anna", missing=0.5)
    with pytest.raises(PlanError, match="only results that are folded have stated tensors"):
        server.send(None, {"w": np.ones(1)}, to="anna", returns=["w"])
    with pytest.raises(_core.CoreError, match="at least one member"):
        server.send(None)


def test_more_open_tasks_than_may_be() -> None:
    with TaskServer(max_open=2) as server:
        tasks = [server.send(number, to="anna") for number in range(2)]
        with pytest.raises(_core.CoreError, match="2 may be"):
            server.send(3, to="anna")
        tasks[0].cancel()
        server.send(3, to="anna")


def test_results_beyond_the_budget_lie_in_files(tmp_path: Path) -> None:
    with TaskServer(memory=1 << 20, spill=tmp_path) as server, ExitStack() as stack:
        members = Members(stack, server)
        for number in range(4):
            members.add(f"m{number}", lambda task: (None, {"w": np.full(1 << 18, task.head, np.float32)}))
        stack.callback(server.close)
        server.wait(4, LIMIT)
        replies = server.send(7).replies()
        assert all((reply.tensors["w"] == 7).all() for reply in replies.values())
    assert not list(tmp_path.iterdir()), "their names are gone"


def test_a_result_beyond_the_bound_is_refused() -> None:
    with TaskServer(max_result=1000) as server, ExitStack() as stack:
        members = Members(stack, server)
        members.add("anna", lambda task: (None, {"w": np.ones(task.head)}))
        stack.callback(server.close)
        server.wait(1, LIMIT)
        reply = server.send(126).replies()["anna"]
        assert (reply.state, reply.reason) == ("failed", "offered a result of 1008 bytes; 1000 is the most")
        assert server.send(125).replies()["anna"].done


def test_each_reply_is_recorded(tmp_path: Path) -> None:
    file = tmp_path / "replies.jsonl"
    with TaskServer(record=file) as server, ExitStack() as stack:
        members = Members(stack, server)
        members.add("anna", double)
        stack.callback(server.close)
        server.wait(1, LIMIT)
        server.send(1, {"w": np.ones(3)}).replies()
    line = json.loads(file.read_text())
    assert (line["member"], line["state"]) == ("anna", "done")
    assert [way["direction"] for way in line["transfers"]] == ["down", "up"]


@pytest.mark.parametrize("scheme", ["tcp", "udp", "grpc", "zmq", "ltp", "quic"])
def test_over_every_transport_that_needs_nothing_else(scheme: str) -> None:
    with TaskServer(listen=f"{scheme}://127.0.0.1:0") as server, ExitStack() as stack:
        members = Members(stack, server)
        for name in ("anna", "ben"):
            members.add(name, double)
        stack.callback(server.close)
        assert server.wait(2, LIMIT) == 2
        for value in (1.0, 2.0):
            replies = server.send(None, {"w": np.full(50_000, value)}).replies()
            assert [reply.state for reply in replies.values()] == ["done"] * 2
            assert all((reply.tensors["w"] == 2 * value).all() for reply in replies.values())


def test_the_names_are_the_packages() -> None:
    assert thalweg.TaskServer is TaskServer
    assert thalweg.TaskClient is TaskClient


def test_the_example_learns_what_is_shared_and_what_is_not() -> None:
    example = Path(__file__).parents[1] / "examples" / "tasks.py"
    said = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=LIMIT, check=True)
    assert said.stdout.splitlines()[-1].startswith("round 5: slope 3.000, mean loss 0.000"), said.stdout


def test_a_member_that_is_revoked_is_cut_off(tmp_path: Path) -> None:
    folder = tmp_path / "pki"
    pki.init(folder, ["127.0.0.1"], 5)
    for name in ("anna", "berta"):
        pki.issue(folder, name, 5, role="task-member")
    ended: dict[str, BaseException | None] = {}

    def member(name: str, address: str) -> None:
        try:
            TaskClient(address, name=name, token_file=folder / f"{name}.token", timeout=LIMIT).run(double)
        except _core.CoreError as error:
            ended[name] = error
        else:
            ended[name] = None

    with TaskServer(pki=folder) as guarded:
        threads = {
            name: threading.Thread(target=member, args=(name, guarded.address), daemon=True)
            for name in ("anna", "berta")
        }
        for thread in threads.values():
            thread.start()
        assert guarded.wait(2, LIMIT) == 2
        pki.revoke(folder, "berta", "task-member")
        threads["berta"].join(LIMIT)
        assert "its token and certificate were revoked" in str(ended["berta"])
        assert "anna" not in ended
    threads["anna"].join(LIMIT)
    assert ended["anna"] is None
