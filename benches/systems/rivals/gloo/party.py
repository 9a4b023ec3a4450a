"""Plain gloo through torch.distributed. A star is a broadcast and a reduce with the server as root.

Documentation: docs.pytorch.org, "Distributed communication package". gloo is its back end for CPU tensors, and
``GLOO_SOCKET_IFNAME`` names the network device.
"""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from contract import Job, job, train


def star(job: Job) -> None:
    """Broadcast the model, train, and reduce the updates to the server."""
    model = torch.empty(job.size // 4)
    for number in range(1, job.rounds + 1):
        if job.index:
            dist.broadcast(model, 0)
            train(model.numpy(), job.index)
            dist.reduce(model, 0)
            continue
        model = torch.from_numpy(job.model(number))
        begin = time.perf_counter()
        dist.broadcast(model, 0)
        model.zero_()
        dist.reduce(model, 0)
        model /= job.clients
        job.done(number, begin, time.perf_counter(), model.numpy())


def allreduce(job: Job) -> None:
    """Compute the mean of all parties' vectors at each party."""
    for number in range(1, job.rounds + 1):
        vector = job.model(number)
        train(vector, job.index + 1)
        shared = torch.from_numpy(vector)
        job.barrier(number)
        begin = time.perf_counter()
        dist.all_reduce(shared)
        shared /= job.parties
        job.done(number, begin, time.perf_counter(), vector)


def tree(job: Job) -> None:
    """Broadcast the model from the root. gloo sends it along a tree."""
    model = torch.empty(job.size // 4)
    for number in range(1, job.rounds + 1):
        if job.index == 0:
            model = torch.from_numpy(job.model(number))
        job.barrier(number)
        begin = time.perf_counter()
        dist.broadcast(model, 0)
        job.done(number, begin, time.perf_counter(), model.numpy())


if __name__ == "__main__":
    one = job()
    os.environ["GLOO_SOCKET_IFNAME"] = one.device
    if one.index == 0:
        one.ready()
    dist.init_process_group("gloo", f"tcp://{one.server}", rank=one.index, world_size=one.parties)
    {"star": star, "allreduce": allreduce, "tree": tree}[one.work](one)
    dist.barrier()
    dist.destroy_process_group()
