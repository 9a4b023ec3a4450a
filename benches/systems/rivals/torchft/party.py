"""torchft's HTTP checkpoint transport: clients receive the server's checkpoint, and the server receives each client's.

Documentation: docs.pytorch.org/torchft, ``HTTPTransport``, which its manager uses with ``num_chunks=0``. The manager
would tell other parties the address of a checkpoint; here files do. Requests wait while no checkpoint is allowed.
"""

from __future__ import annotations

import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import torch
from contract import Job, job, train, wait_for
from torchft.checkpointing.http_transport import HTTPTransport

LIMIT = timedelta(seconds=900)


def open_transport(job: Job) -> HTTPTransport:
    """Start a transport, and write its address to a file for the others."""
    transport = HTTPTransport(LIMIT, job.options.get("chunks", 0))
    port = transport._server.socket.getsockname()[1]  # noqa: SLF001 - its own address has the name of the host
    part = job.folder / f"address-{job.index}.part"
    part.write_text(f"http://{job.addresses[job.index]}:{port}/checkpoint/")
    part.rename(job.folder / f"address-{job.index}")
    return transport


def address(job: Job, index: int) -> str:
    wait_for(job.folder / f"address-{index}")
    return (job.folder / f"address-{index}").read_text()


def split(job: Job, model: torch.Tensor) -> dict[str, list[torch.Tensor]]:
    parts = model.tensor_split(job.options.get("chunks", 1))
    return {"model": [model] if len(parts) == 1 else [part.clone() for part in parts]}


def receive(transport: HTTPTransport, number: int, where: str) -> torch.Tensor:
    """Receive a checkpoint. The other party answers 400 while it still offers the one before, so try again."""
    while True:
        try:
            parts = transport.recv_checkpoint(0, where, number, LIMIT)["model"]
        except urllib.error.HTTPError as error:  # noqa: PERF203
            if error.code != 400:
                raise
            time.sleep(0.005)
        else:
            return parts[0] if len(parts) == 1 else torch.cat(parts)


def serve(job: Job) -> None:
    transport = open_transport(job)
    job.ready()
    clients = [address(job, index) for index in range(1, job.clients + 1)]
    with ThreadPoolExecutor(job.clients) as pool:
        for number in range(1, job.rounds + 1):
            model = torch.from_numpy(job.model(number))
            mean, state = torch.zeros_like(model), split(job, model)
            begin = time.perf_counter()
            transport.send_checkpoint(list(range(1, job.clients + 1)), number, state, LIMIT)
            for update in pool.map(partial(receive, transport, number), clients):
                mean += update
            transport.disallow_checkpoint()
            mean /= job.clients
            job.done(number, begin, time.perf_counter(), mean.numpy())


def take_part(job: Job) -> None:
    transport, server = open_transport(job), address(job, 0)
    for number in range(1, job.rounds + 1):
        model = receive(transport, number, server)
        transport.disallow_checkpoint()
        train(model.numpy(), job.index)
        transport.send_checkpoint([0], number, split(job, model), LIMIT)
    wait_for(job.folder / "last")


if __name__ == "__main__":
    one = job()
    serve(one) if one.index == 0 else take_part(one)
