"""Admitted members that lie, beside honest members: the mean of each task is exactly that of the honest members.

Peers of ``adversary`` have no token. These members have one. Their answers are well-formed but false, or they do not
answer.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from random import Random
from typing import Any, Final

import numpy as np

from tests.hostile.storm import place
from thalweg import _core
from thalweg.tasks import Given, TaskClient, TaskServer

ELEMENTS: Final = 1 << 14
HONEST: Final = 2
LIARS: Final = 3
# Turns a hang into a failure.
LIMIT: Final = 60.0
Lie = Callable[[Given], object]


def _answer(task: Given, weight: float, stated: object, values: Any = None) -> None:
    array = np.full(ELEMENTS, 1e6, np.float32) if values is None else values
    task.answer({"weight": stated}, {"w": array}, weight=weight)


def _raw(head: bytes) -> Lie:
    layout = _core.Layout([("w", "F32", [ELEMENTS])])
    return lambda task: task._core.answer(task.number, head, _core.Arena(layout), 1.0)


def heavy(task: Given) -> None:
    """Send an offer with a much larger weight than the head states."""
    _answer(task, 2.0**40, 1.0)


def other(task: Given) -> None:
    """State another weight in the head than in the offer."""
    _answer(task, 1.0, 2.0)


def text(task: Given) -> None:
    """State a weight that is not a number."""
    _answer(task, 1.0, "1")


def weightless(task: Given) -> None:
    """Offer a result with weight 0."""
    _answer(task, 0.0, 0.0)


def infinite(task: Given) -> None:
    """Send values that are not finite, with an honest head."""
    _answer(task, 1.0, 1.0, np.full(ELEMENTS, np.inf, np.float32))


def misshapen(task: Given) -> None:
    """Send another layout, with an honest head."""
    _answer(task, 1.0, 1.0, np.zeros((2, 7), np.float32))


def denies(task: Given) -> None:
    """Refuse the task; the reason is a megabyte of control characters."""
    task.refuse("\x1b[2J" * (1 << 18))


LIES: Final[Sequence[Lie]] = (
    heavy, other, text, weightless, infinite, misshapen, denies,
    _raw(b"[" * 100_000), _raw(b""), _raw(b'{"weight": 1e999}'), _raw(b"\xff"),
)  # fmt: skip


def judge(member: str, head: Any, weight: float) -> str | None:
    """Accept a result if its head states its weight."""
    stated = head.get("weight") if isinstance(head, dict) else None
    return None if stated == weight else "its head states another weight"


def _serve(client: TaskClient, work: Callable[[Given], object]) -> None:
    with suppress(_core.CoreError):  # the server is gone
        for task in client:
            work(task)


def _honest(at: int) -> Callable[[Given], object]:
    # Weights and values are small whole numbers, so that their mean is exact in any order.
    return lambda task: _answer(task, 1.0, 1.0, np.full(ELEMENTS, task.head + 2 * at, np.float32))


def _lying(random: Random) -> Callable[[Given], object]:
    def lie(task: Given) -> None:
        random.choice(LIES)(task)

    return lie


def _join(
    stack: ExitStack, address: str, name: str, options: Mapping[str, Any], work: Callable[[Given], object]
) -> None:
    client = TaskClient.over(_core.TaskClient(address, name, json.dumps({"transport": options})), name)
    thread = threading.Thread(target=_serve, args=(client, work), daemon=True)
    thread.start()
    stack.callback(thread.join, LIMIT)


def run(transport: str, seed: int, more: Callable[[int, float], bool]) -> Counter[str]:
    """Send tasks while ``more(tasks, seconds)`` is true; return their number, and how the liars' parts ended.

    Raises AssertionError if a mean is not that of the honest members, or if a liar's result counts.
    """
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        url, options = stack.enter_context(place(transport))
        core = _core.TaskServer(url, json.dumps({"transport": options}))
        server = stack.enter_context(TaskServer.over(core))
        for at in range(HONEST):
            _join(stack, server.address, f"honest-{at}", options, _honest(at))
        for at in range(LIARS):
            _join(stack, server.address, f"liar-{at}", options, _lying(Random(seed * LIARS + at)))
        stack.callback(server.close)
        assert server.wait(HONEST + LIARS, LIMIT) == HONEST + LIARS
        began, number = time.monotonic(), 0
        while more(number, time.monotonic() - began):
            number += 1
            with server.send(number, {"w": np.zeros(ELEMENTS, np.float32)}, reduce="mean", judge=judge) as task:
                replies = task.replies()
                assert len(replies) == HONEST + LIARS
                for name, reply in replies.items():
                    assert reply.done == name.startswith("honest"), (
                        f"task {number}: {name}: {reply.state}: {reply.reason}"
                    )
                    assert len(reply.reason or "") <= 1 << 10, "a reason is bounded"
                    counts[reply.state] += 1
                assert (task.mean()["w"] == number + HONEST - 1).all(), f"task {number} has another mean"
        counts["tasks"] = number
    return counts
