"""shardcast: party 0 is the origin, parties 1 and 2 are middle nodes, and all others are clients of these two.

Documentation: its README. Middle nodes look for new versions every ``check_interval`` seconds, 30 by default; the
option ``interval`` sets it. A client looks again after 10 ms. The model is a file, and an environment variable sets
the size of a shard.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import numpy as np
import shardcast
from contract import Job, job, wait_for

MIDDLE = (1, 2)


def serving(mine: Path) -> Path:
    """Return the folder that a node serves. It has the file that clients download first, to measure the node's rate."""
    folder = mine / "served"
    folder.mkdir()
    (folder / "data1.bin").write_bytes(bytes(1 << 20))
    return folder


def attempt(make):
    """Try until ``make`` succeeds. It fails while the node above is missing, or while another client uses its file."""
    while True:
        try:
            return make()
        except Exception:  # noqa: BLE001, PERF203 - shardcast raises a plain Exception
            time.sleep(0.1)


def origin(job: Job, mine: Path) -> None:
    shardcast.initialize(str(serving(mine)), job.port)
    job.ready()
    for number in range(1, job.rounds + 1):
        model = job.model(number)
        for index in range(1, job.parties):
            wait_for(job.folder / f"waits-{index}-{number}")
        begin = time.perf_counter()
        model.tofile(mine / "model")
        shardcast.broadcast(str(mine / "model"))
        job.done(number, begin, time.perf_counter(), model)
    for index in range(1, job.parties):
        wait_for(job.folder / f"over-{index}")
    shardcast.shutdown()


def receive(job: Job, mine: Path, servers: list[str]) -> None:
    make = lambda: attempt(lambda: shardcast.ClientNode(servers, str(mine / "got")))  # noqa: E731
    client = make()
    for number in range(1, job.rounds + 1):
        (job.folder / f"waits-{job.index}-{number}").touch()
        begin, path = time.perf_counter(), None
        while path is None:
            try:
                if f"v{number}" in client.list_available_versions():
                    path = client.download_version(f"v{number}")
            except ValueError:  # raised when its estimates of all servers' rates have become zero
                client = make()
            time.sleep(0.01)
        model = np.fromfile(path, np.float32)
        job.done(number, begin, time.perf_counter(), model)
    (job.folder / f"over-{job.index}").touch()


if __name__ == "__main__":
    one = job()
    logging.disable(logging.INFO)
    mine = one.folder / f"party-{one.index}"
    mine.mkdir()
    os.chdir(mine)
    if one.index == 0:
        origin(one, mine)
    else:
        up = [f"http://{one.addresses[0]}:{one.port}"]
        if one.index in MIDDLE:
            more = {"check_interval": one.options["interval"]} if "interval" in one.options else {}
            folder = serving(mine)
            middle = attempt(lambda: shardcast.MiddleNode(up, str(folder), one.port + one.index, **more))
        else:
            up = [f"http://{one.addresses[index]}:{one.port + index}" for index in MIDDLE]
        receive(one, mine, up)
        for index in range(1, one.parties):
            wait_for(one.folder / f"over-{index}")
        os._exit(0)
