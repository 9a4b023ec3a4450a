"""Lying members of a task: the mean has exactly the replies with state "done", weighted as their heads state."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from random import Random
from typing import Any

import numpy as np
import pytest

from thalweg import _core
from thalweg.errors import PlanError
from thalweg.tasks import Given, TaskClient, TaskServer

# Seconds after which a hanging test fails.
LIMIT = 60.0
SEEDS = 40
SHAPE = (64, 9)
Work = Callable[[Given, TaskClient], object]


def gives(value: float, weight: float, stated: Any = None, shape: tuple[int, ...] = SHAPE) -> Work:
    """Return a function that answers with a constant. An honest head states the weight."""

    def work(task: Given, client: TaskClient) -> None:
        head = {"weight": weight if stated is None else stated}
        task.answer(head, {"w": np.full(shape, value, np.float32)}, weight=weight)

    return work


def raw(head: bytes) -> Work:
    def work(task: Given, client: TaskClient) -> None:
        array = _core.Arena(_core.Layout([("w", "F32", list(SHAPE))]))
        task._core.answer(task.number, head, array, 1.0)

    return work


def dies(task: Given, client: TaskClient) -> None:
    client.close("it dies")


def silent(task: Given, client: TaskClient) -> None:
    """Never answer."""


def refuses(task: Given, client: TaskClient) -> None:
    task.refuse("no data")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def served(stack: ExitStack, members: dict[str, Work]) -> TaskServer:
    """Return a server with a member for each of these functions."""
    server = stack.enter_context(TaskServer(grace=1.0))

    def serve(client: TaskClient, work: Work) -> None:
        with suppress(_core.CoreError):  # the server is gone
            for task in client:
                work(task, client)

    for name, work in members.items():
        client = TaskClient(server.address, name=name, timeout=2.0)
        thread = threading.Thread(target=serve, args=(client, work), daemon=True)
        thread.start()
        stack.callback(thread.join, LIMIT)
    stack.callback(server.close)
    assert server.wait(len(members), LIMIT) == len(members)
    return server


def judge(member: str, head: Any, weight: float) -> str | None:
    """Accept a result if its head states its weight."""
    stated = head.get("weight") if isinstance(head, dict) else None
    return None if stated == weight else f"it weighs {weight:g}, and states {stated!r}"


def population(random: Random) -> dict[str, tuple[float, Work]]:
    members: dict[str, tuple[float, Work]] = {}
    for number in range(random.randint(1, 8)):
        value, weight = float(random.randint(-1000, 1000)), random.choice([0.5, 1.0, 7.0, 1000.0])
        work = random.choice([
            gives(value, weight),
            gives(value, weight),
            gives(value, 2.0**40, weight),
            gives(value, weight, weight + 1),
            gives(value, weight, "heavy"),
            gives(value, 0.0),
            gives(value, 2.0**41),
            gives(float("nan"), weight),
            gives(value, weight, shape=(9, 64)),
            raw(b"[" * 100_000),
            raw(b""),
            raw(b'{"weight": NaN}'),
            refuses,
            dies,
            silent,
        ])  # fmt: skip
        members[f"member-{number}"] = (value, work)
    return members


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_mean_is_that_of_the_replies_that_are_done(stack: ExitStack, seed: int) -> None:
    members = population(Random(seed))
    server = served(stack, {name: work for name, (_, work) in members.items()})
    task = server.send(None, {"w": np.zeros(SHAPE, np.float32)}, reduce="mean", judge=judge)
    quiet = {name for name, (_, work) in members.items() if work is silent}
    for _ in range(len(members) - len(quiet)):
        task.next_reply(LIMIT)
    for name in quiet:
        server.forget(name, "it never answers")
    replies = task.replies()
    assert sorted(replies) == sorted(members)
    done = {name: reply for name, reply in replies.items() if reply.done}
    for name, reply in done.items():
        assert reply.head["weight"] == reply.weight, name
    if not done:
        with pytest.raises(_core.CoreError, match="no result was folded"):
            task.mean()
        return
    values, weights = zip(*((members[name][0], reply.weight) for name, reply in done.items()), strict=True)
    np.testing.assert_allclose(task.mean()["w"], np.full(SHAPE, np.average(values, weights=weights)), rtol=1e-5)


def test_a_result_is_judged_before_a_byte_of_it_is_received(stack: ExitStack) -> None:
    asked: list[tuple[str, Any, float]] = []

    def ask(member: str, head: Any, weight: float) -> str | None:
        asked.append((member, head, weight))
        return judge(member, head, weight)

    server = served(stack, {"anna": gives(1.0, 2.0), "liar": gives(1e6, 2.0**40, 1.0)})
    task = server.send(None, {"w": np.zeros(SHAPE, np.float32)}, reduce="mean", judge=ask)
    assert (task.mean()["w"] == 1).all()
    refused = task.replies()["liar"]
    assert (refused.state, refused.weight) == ("failed", 0.0)
    assert refused.reason == "it weighs 1.09951e+12, and states 1.0"
    assert [way["direction"] for way in refused.transfers] == ["down"], "nothing came"
    assert sorted(asked) == [("anna", {"weight": 2.0}, 2.0), ("liar", {"weight": 1.0}, 2.0**40)]


def test_a_result_that_is_handed_over_may_be_judged_too(stack: ExitStack) -> None:
    server = served(stack, {"anna": gives(1.0, 2.0), "liar": gives(1.0, 2.0, 3.0)})
    replies = server.send(None, {"w": np.zeros(SHAPE)}, judge=judge).replies()
    assert [replies[name].done for name in ("anna", "liar")] == [True, False]


def test_what_a_judge_cannot_judge_does_not_count(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    def broken(member: str, head: Any, weight: float) -> str | None:
        raise KeyError(member)

    server = served(stack, {"anna": gives(1.0, 2.0)})
    task = server.send(None, {"w": np.zeros(SHAPE, np.float32)}, reduce="mean", judge=broken)
    assert task.replies()["anna"].reason == "its result cannot be judged: KeyError: 'anna'"
    assert "the judge of its result failed" in caplog.text


def test_a_task_may_end_while_its_judge_thinks(stack: ExitStack) -> None:
    thinks, done = threading.Event(), threading.Event()

    def slow(member: str, head: Any, weight: float) -> None:
        thinks.set()
        done.wait(LIMIT)

    server = served(stack, {"anna": gives(1.0, 2.0)})
    task = server.send(None, {"w": np.zeros(SHAPE, np.float32)}, reduce="mean", judge=slow)
    assert thinks.wait(LIMIT)
    task.close()
    done.set()
    again = server.send(None, {"w": np.zeros(SHAPE, np.float32)}, reduce="mean")
    assert (again.mean()["w"] == 1).all()


def test_a_head_that_nobody_could_read_back_is_an_error_at_the_call(stack: ExitStack) -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    server = served(stack, {})
    with pytest.raises(PlanError, match="cannot be read back"):
        server.send(deep, to="anna")


WANTED = {"a": np.zeros(3, np.float32), "w": np.zeros(SHAPE, np.float32)}


@pytest.mark.parametrize(
    ("result_tensors", "named"),
    [
        ({"a": WANTED["a"], "v": WANTED["w"]}, r"v\b"),
        ({"a": WANTED["a"], "w": np.zeros((9, 64), np.float32)}, r"w\b.*\[9, 64\].*\[64, 9\]"),
        ({"a": WANTED["a"], "w": np.zeros(SHAPE)}, r"w\b.*float64.*float32"),
        ({"a": WANTED["a"]}, r"w\b"),
        ({**WANTED, "z": np.zeros(1 << 20)}, r"z\b"),
        ({"a": np.zeros(4, np.float32), "w": np.zeros(1)}, r"a\b"),
        ({}, r"a\b"),
    ],
)
@pytest.mark.parametrize("stated", [None, {"a": ("F32", [3]), "w": ("F32", SHAPE)}])
def test_a_result_of_other_tensors_is_refused_before_a_byte_of_it_is_received(
    stack: ExitStack, result_tensors: dict[str, Any], named: str, stated: Any
) -> None:
    """The task says which tensors a result must have. The error names the first one that differs."""
    server = served(stack, {
        "anna": lambda task, _: task.answer(None, {name: array + 1 for name, array in WANTED.items()}),
        "liar": lambda task, _: task.answer(None, result_tensors),
    })  # fmt: skip
    task = server.send(None, WANTED if stated is None else None, reduce="mean", returns=stated)
    mean = task.mean()
    assert all((mean[name] == 1).all() for name in WANTED)
    refused = task.replies()["liar"]
    assert refused.state == "failed"
    assert re.search(f"cannot be folded with the others: .*{named}", refused.reason or ""), refused.reason
    assert not refused.tensors
    assert "up" not in {way["direction"] for way in refused.transfers}, "nothing came"
