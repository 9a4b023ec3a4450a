"""torch RPC with TensorPipe: the server calls ``work`` at all clients at once, with the model as its argument.

Documentation: docs.pytorch.org, "Distributed RPC Framework". ``TP_SOCKET_IFNAME`` names TensorPipe's network device.
"""

from __future__ import annotations

import os
import time

import torch
from contract import Job, job, train
from torch.distributed import rpc

LIMIT = 900.0


def work(model: torch.Tensor, index: int) -> torch.Tensor:
    train(model.numpy(), index)
    return model


def serve(job: Job) -> None:
    for number in range(1, job.rounds + 1):
        model = torch.from_numpy(job.model(number))
        begin = time.perf_counter()
        calls = [rpc.rpc_async(f"client-{n}", work, (model, n), timeout=LIMIT) for n in range(1, job.clients + 1)]
        mean = calls[0].wait()
        for call in calls[1:]:
            mean += call.wait()
        mean /= job.clients
        job.done(number, begin, time.perf_counter(), mean.numpy())


if __name__ == "__main__":
    one = job()
    os.environ["TP_SOCKET_IFNAME"] = os.environ["GLOO_SOCKET_IFNAME"] = one.device
    if one.index == 0:
        one.ready()
    name = f"client-{one.index}" if one.index else "server"
    # Otherwise TensorPipe would see that all hosts are on one machine, and use shared memory instead of the network.
    wire = {} if one.device == "lo" else {"_transports": ["uv"], "_channels": ["basic"]}
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://{one.server}", rpc_timeout=LIMIT, **wire)
    rpc.init_rpc(name, rank=one.index, world_size=one.parties, rpc_backend_options=options)
    if one.index == 0:
        serve(one)
    rpc.shutdown()
