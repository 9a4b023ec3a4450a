"""shardcast: party 0 is the origin, parties 1 and 2 are middle nodes, and all others are clients of these two.

Documentation: its README. Middle nodes look for new versions every ``check_interval`` seconds, 30 by default; the
option ``interval`` sets it. A client looks again after 10 ms. The model is a file, and an environment variable sets
the size of a shard.

It is made for one node on a machine. When a node starts, it downloads a file to /tmp/dummy.bin, to measure its servers'
rates. If two start at once, one may find an empty file, and a server with a rate of zero is never asked again. So the
parties start by turns. All clients of one installation download the list of versions to the same file beside the
package, so each party imports a copy of its own.
"""

from __future__ import annotations

import fcntl
import importlib.util
import logging
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from contract import Job, job, wait_for

MIDDLE = (1, 2)


def own_copy(mine: Path):
    """Return the package, imported from a copy that no other party has."""
    installed = Path(importlib.util.find_spec("shardcast").origin).parent
    shutil.copytree(installed, mine / "packages" / "shardcast")
    sys.path.insert(0, str(mine / "packages"))
    return importlib.import_module("shardcast")


def serving(mine: Path) -> Path:
    """Return the folder that a node serves. It has the file that clients download first, to measure the node's rate."""
    folder = mine / "served"
    folder.mkdir()
    (folder / "data1.bin").write_bytes(bytes(1 << 20))
    return folder


def attempt(job: Job, make):
    """Try until ``make`` succeeds, one party at a time. It fails while the node above is missing."""
    while True:
        # shardcast raises a plain Exception.
        with (job.folder / "starting").open("w") as lock, suppress(Exception):
            fcntl.flock(lock, fcntl.LOCK_EX)
            return make()
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
    make = lambda: attempt(job, lambda: shardcast.ClientNode(servers, str(mine / "got")))  # noqa: E731
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
    shardcast = own_copy(mine)
    if one.index == 0:
        origin(one, mine)
    else:
        up = [f"http://{one.addresses[0]}:{one.port}"]
        if one.index in MIDDLE:
            more = {"check_interval": one.options["interval"]} if "interval" in one.options else {}
            folder = serving(mine)
            middle = attempt(one, lambda: shardcast.MiddleNode(up, str(folder), one.port + one.index, **more))
        else:
            up = [f"http://{one.addresses[index]}:{one.port + index}" for index in MIDDLE]
        receive(one, mine, up)
        for index in range(1, one.parties):
            wait_for(one.folder / f"over-{index}")
        os._exit(0)
