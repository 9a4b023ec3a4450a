"""thalweg's tasks along a tree of parties: a party sends each piece of the model on as soon as it has it.

A small model goes along a binary tree, which is less deep. A large one goes along a chain, whose links carry it once.

Each party is a member of its parent's task server, and has a task server of its own for its children. It sends received
tensors on without a copy.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import ExitStack

import numpy as np
from contract import Job, job

from thalweg import TaskClient, TaskServer, Tensors, _core

TOKEN = "benchmark"  # noqa: S105 - no secret
# A model of at least so many bytes goes along a chain.
LARGE = 16 << 20
LIMIT = 120.0


def fanout(job: Job) -> int:
    return 1 if job.size >= LARGE else 2


def pieces(job: Job) -> int:
    """Return the number of pieces. The deepest party waits for one of them at each level above it."""
    return 32 if job.size >= LARGE else 8


def children(job: Job) -> list[int]:
    first = fanout(job) * job.index + 1
    return [index for index in range(first, first + fanout(job)) if index < job.parties]


def url(job: Job, index: int) -> str:
    """Return the URL of a party's server. Each has a port of its own, since on one host all have the same address."""
    return f"{job.options['transport']}://{job.addresses[index]}:{job.port + index}"


class Below:
    """A party's task server for its children. It does nothing if the party has none."""

    def __init__(self, job: Job, stack: ExitStack) -> None:
        self.count, self.open = len(children(job)), []
        if self.count:
            core = _core.TaskServer(url(job, job.index), json.dumps({"token": TOKEN, "ahead": pieces(job)}))
            self.server = stack.enter_context(TaskServer.over(core))

    def wait(self) -> None:
        if self.count and self.server.wait(self.count, LIMIT) < self.count:
            raise RuntimeError("not all children are there")

    def send(self, head: dict[str, int], tensors) -> None:
        if self.count:
            self.open.append(self.server.send(head, tensors))

    def settle(self) -> None:
        """Wait until the children have received all that was sent."""
        for task in self.open:
            with task:
                if not all(reply.done for reply in task):
                    raise RuntimeError("not all children have the model")
        self.open = []


def cut(size: int, count: int) -> Iterable[slice]:
    step = -(-size // count)
    return (slice(at, min(size, at + step)) for at in range(0, size, step))


def root(job: Job) -> None:
    with ExitStack() as stack:
        below = Below(job, stack)
        job.ready()
        below.wait()
        for number in range(1, job.rounds + 1):
            model = job.model(number)
            parts = [(part.start, Tensors({"piece": model[part]})) for part in cut(len(model), pieces(job))]
            begin = time.perf_counter()
            for at, piece in parts:
                below.send({"round": number, "at": at}, piece)
            below.settle()
            job.done(number, begin, time.perf_counter(), model)


def relay(job: Job) -> None:
    model, name = np.empty(job.size // 4, np.float32), f"party-{job.index}"
    with ExitStack() as stack:
        below = Below(job, stack)
        below.wait()
        core = _core.TaskClient(url(job, (job.index - 1) // fanout(job)), name, json.dumps({"token": TOKEN}))
        client = stack.enter_context(TaskClient.over(core, name))
        had, unanswered = 0, []
        for task in client:
            below.send(task.head, task.tensors)
            piece, at = np.asarray(task.tensors["piece"]), task.head["at"]
            model[at : at + len(piece)] = piece
            had += len(piece)
            unanswered.append(task)
            if had < len(model):
                continue
            job.done(task.head["round"], 0.0, time.perf_counter(), model)
            # Answer only when all children have the model, so that the root knows when all parties have it.
            below.settle()
            for one in unanswered:
                one.answer()
            had, unanswered = 0, []


if __name__ == "__main__":
    one = job()
    root(one) if one.index == 0 else relay(one)
