"""hivemind: an all-reduce by DecentralizedAverager. The others join the DHT through party 0.

Documentation: learning-at-home.readthedocs.io, "hivemind.averaging". A step first looks for its group, for at least
``min_matchmaking_time``, which the option ``averager`` can set.
"""

from __future__ import annotations

import sys
import time

import hivemind
import torch
from contract import Job, job, train, wait_for


def join(job: Job) -> hivemind.DHT:
    """Start a DHT node. Party 0 writes its address to a file, and the others connect to it."""
    mine = f"/ip4/{job.addresses[job.index]}/tcp/{job.port + job.index}"
    if job.index:
        wait_for(job.folder / "peer")
        return hivemind.DHT([(job.folder / "peer").read_text()], host_maddrs=[mine], start=True)
    dht = hivemind.DHT(host_maddrs=[mine], start=True)
    (job.folder / "peer.part").write_text(str(dht.get_visible_maddrs()[0]))
    (job.folder / "peer.part").rename(job.folder / "peer")
    job.ready()
    return dht


def allreduce(job: Job) -> None:
    dht = join(job)
    vector = torch.empty(job.size // 4)
    averager = hivemind.DecentralizedAverager(
        [vector], dht, start=True, prefix="bench", target_group_size=job.parties, min_group_size=job.parties,
        **job.options.get("averager", {}),
    )  # fmt: skip
    for number in range(1, job.rounds + 1):
        with averager.get_tensors() as (own,):
            own[:] = torch.from_numpy(job.model(number))
            train(own.numpy(), job.index + 1)
        job.barrier(number)
        begin = time.perf_counter()
        averager.step(timeout=900)
        end = time.perf_counter()
        with averager.get_tensors() as (own,):
            job.done(number, begin, end, own.numpy().copy())
    wait_for(job.folder / "last")
    averager.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    allreduce(job())
    sys.exit(0)
