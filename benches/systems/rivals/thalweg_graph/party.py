"""thalweg without a server: the parties are nodes of a full graph, each of which averages one segment of all models."""

from __future__ import annotations

import json
import time

import numpy as np
from contract import Job, job, train, wait_for

from thalweg import _core

LIMIT = 600.0
TOKEN = "benchmark"  # noqa: S105 - no secret
# `exchange` is the default of job.exchange: a full graph averages by segments where that saves enough bytes.
OPTIONS = {"own_token": TOKEN, "exchange": "auto"}


def allreduce(job: Job) -> None:
    arena = _core.Arena(_core.Layout([("payload", "F32", [job.size // 4])]))
    vector = np.asarray(arena).view(np.float32)
    scheme = job.options["transport"]
    # shm's port is part of a name in the kernel.
    hosts = ["localhost"] * job.parties if scheme == "shm" else job.addresses
    urls = [f"{scheme}://{host}:{job.port + n}" for n, host in enumerate(hosts)]
    node = _core.Node(arena, f"n{job.index}", urls[job.index], json.dumps({**OPTIONS, "token": TOKEN}))
    if job.index == 0:
        job.ready()
    # `meet` connects to the others, which have to listen by then.
    (job.folder / f"listens-{job.index}").touch()
    for index in range(job.parties):
        wait_for(job.folder / f"listens-{index}")
    others = {f"n{n}": url for n, url in enumerate(urls) if n != job.index}
    node.meet(json.dumps(others))
    if node.gather(len(others), LIMIT) != len(others):
        raise RuntimeError("not all parties are there")
    weights = json.dumps(dict.fromkeys(others, 1 / job.parties))
    for number in range(1, job.rounds + 1):
        vector[:] = number
        train(vector, job.index + 1)
        job.barrier(number)
        begin = time.perf_counter()
        node.begin(number, weights, None)
        if node.wait(node.ready(number), LIMIT) is None:
            raise RuntimeError("waited in vain")
        job.done(number, begin, time.perf_counter(), vector)
    node.close("done")


if __name__ == "__main__":
    allreduce(job())
