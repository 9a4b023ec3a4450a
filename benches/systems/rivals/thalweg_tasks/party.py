"""thalweg's tasks: the server itself sends the model to all members, and each answers without tensors."""

from __future__ import annotations

import json
import time

import numpy as np
from contract import Job, job

from thalweg import TaskClient, TaskServer, Tensors, _core

TOKEN = "benchmark"  # noqa: S105 - no secret


def url(job: Job) -> str:
    """Return the server's URL; shm's port is part of a name in the kernel."""
    scheme = job.options["transport"]
    return f"{scheme}://{f'localhost:{job.port}' if scheme == 'shm' else job.server}"


def serve(job: Job) -> None:
    core = _core.TaskServer(url(job), json.dumps({"token": TOKEN}))
    with TaskServer.over(core) as server:
        job.ready()
        server.wait(job.clients, 120.0)
        for number in range(1, job.rounds + 1):
            model = Tensors({"payload": job.model(number)})
            begin = time.perf_counter()
            with server.send(None, model) as task:
                if not all(reply.done for reply in task):
                    raise RuntimeError("not all members have the model")
            job.done(number, begin, time.perf_counter(), np.asarray(model["payload"]))


def take_part(job: Job) -> None:
    def note(task):
        model = np.asarray(task.tensors["payload"])
        job.done(int(model[0]), 0.0, time.perf_counter(), model)
        return None, None

    name = f"client-{job.index}"
    core = _core.TaskClient(url(job), name, json.dumps({"token": TOKEN}))
    with TaskClient.over(core, name) as client:
        client.run(note)


if __name__ == "__main__":
    one = job()
    serve(one) if one.index == 0 else take_part(one)
