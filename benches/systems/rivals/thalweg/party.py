"""thalweg: rounds with a server, over the transport that the option ``transport`` names.

The emulated network is private to this machine, so links are not encrypted, as in ``thalweg run --network``. Only
transports that always encrypt do so here too. Most other systems run without encryption.
"""

from __future__ import annotations

import json
import time

import numpy as np
from contract import Job, job, train

from thalweg import _core
from thalweg.machine.waiting import OUTAGE_SECONDS

TOKEN = "benchmark"  # noqa: S105 - no secret


def url(job: Job) -> str:
    """Return the server's URL. With shm the host is always localhost, and the port is part of a socket's name."""
    scheme = job.options["transport"]
    return f"{scheme}://{f'localhost:{job.port}' if scheme == 'shm' else job.server}"


def serve(job: Job) -> None:
    arena = _core.Arena(_core.Layout([("payload", "F32", [job.size // 4])]))
    model = np.asarray(arena).view(np.float32)
    config = {"expected": job.clients, "enough": job.options.get("enough", job.clients), "token": TOKEN}
    config["outage"] = OUTAGE_SECONDS  # the default of thalweg's commands
    server = _core.Server(arena, url(job), json.dumps({**config, **job.options.get("server", {})}))
    job.ready()
    server.wait(job.clients, 120.0)
    for number in range(1, job.rounds + 1):
        model[:] = number
        begin = time.perf_counter()
        server.round(number, "{}", None)
        job.done(number, begin, time.perf_counter(), model)
    server.close("done")


def take_part(job: Job) -> None:
    options = {"token": TOKEN, **job.options.get("client", {})}
    client = _core.Client(url(job), f"client-{job.index}", json.dumps(options), None)
    client.join()
    while (task := client.next()) is not None:
        train(np.asarray(client.arena).view(np.float32), job.index)
        if client.submit(task[0], 1, "{}") == "done":
            break
    client.close("done")


if __name__ == "__main__":
    one = job()
    serve(one) if one.index == 0 else take_part(one)
