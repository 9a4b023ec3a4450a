"""One peer's process, in one of the compared programs. Its environment need not have thalweg.

python benches/diloco/program.py WAY JSON

It prints ``loaded``, reads a line, joins the others, prints ``ready``, reads a line, and takes its steps, each with a
line. Then it prints a JSON object with the times. Computing is modelled: a step sleeps ``compute`` seconds, and then
SGD adds small numbers to the values. So the times are those of the exchanges, and not of this machine's cores.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from model import small_gpt  # type: ignore[import-not-found]


def outer(tensors: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(tensors, lr=0.7, momentum=0.9, nesterov=True)


class Job:
    """What all programs have in common: the model, the inner optimizer, and the settings."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.model: nn.Module = small_gpt()
        self.inner = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.name: str = table["name"]
        self.peers: dict[str, str] = table["peers"]
        self.place = sorted(self.peers).index(self.name)
        self.every: int = table["every"]
        self.fragments: int = table["fragments"]
        self.overlap: int = table["overlap"]
        self.compress: str | None = table["compress"]
        self.buckets: bool = table["buckets"]
        self.port: int = table["port"]
        #: Objects that must not be freed before the process ends.
        self.kept: list[object] = []
        generator = torch.Generator().manual_seed(self.place)
        for values in self.model.parameters():
            values.grad = torch.randn(values.shape, generator=generator) * 1e-2

    @property
    def ip(self) -> str:
        return self.peers[self.name]

    def parts(self) -> list[nn.Module]:
        """Return the model's modules in as many parts as there are fragments: the layers, and the rest in the first."""
        modules: Any = self.model
        blocks = list(modules.blocks)
        rest = [modules.tokens, modules.places, modules.last]
        if self.fragments == 1:
            return [self.model]
        size = -(-len(blocks) // self.fragments)
        groups = [blocks[at : at + size] for at in range(0, len(blocks), size)]
        return [nn.ModuleList([*(rest if not at else []), *group]) for at, group in enumerate(groups)]


# What a way's function returns once it has joined: the function to call instead of ``inner.step()``, and the context in
# which the steps have to run.
Joined = tuple[Callable[[], object], AbstractContextManager[Any]]


def alone(job: Job) -> Joined:
    """Never exchange. This shows what the steps alone take on this machine."""
    return job.inner.step, nullcontext()


def thalweg(job: Job) -> Joined:
    """``thalweg.diloco`` on a full graph, without a server."""
    import thalweg as library

    urls = {name: f"tcp://{ip}:{job.port}" for name, ip in job.peers.items()}
    others = {name: url for name, url in urls.items() if name != job.name}
    keys = {key: os.environ[key.upper()] for key in ("ca", "cert", "key")}
    peer = library.diloco(
        job.model,
        job.inner,
        outer,
        every=job.every,
        fragments=job.fragments,
        overlap=job.overlap,
        compress=job.compress,  # type: ignore[arg-type]
        name=job.name,
        listen=urls[job.name],
        neighbours=others,
        timeout=120,
        **keys,  # type: ignore[arg-type]
    )
    return job.inner.step, peer


def gloo(job: Job) -> Joined:
    """DiLoCo by hand: every ``every`` steps an all-reduce of the differences, and the outer step at each peer."""
    import torch.distributed as dist

    first = min(job.peers.values())
    limit = timedelta(seconds=120)
    leads = first == job.ip
    store = dist.TCPStore(first, job.port, len(job.peers), leads, limit)  # type: ignore[attr-defined]
    dist.init_process_group(
        "gloo", store=store, rank=job.place, world_size=len(job.peers), timeout=timedelta(seconds=30)
    )
    kept = [values.detach().clone() for values in job.model.parameters()]
    optimizer = outer(kept)
    count = [0]

    def step() -> None:
        job.inner.step()
        count[0] += 1
        if count[0] % job.every:
            return
        flat = torch.cat([(k - v.detach()).reshape(-1) for k, v in zip(kept, job.model.parameters(), strict=True)])
        dist.all_reduce(flat)
        at = 0
        for k in kept:
            k.grad = (flat[at : at + k.numel()] / len(job.peers)).view_as(k)
            at += k.numel()
        optimizer.step()
        with torch.no_grad():
            for k, v in zip(kept, job.model.parameters(), strict=True):
                v.copy_(k)

    return step, nullcontext()


def torchft(job: Job) -> Joined:
    """Streaming DiLoCo of torchft over gloo. torchft's lighthouse runs beside the first peer."""
    import torch.distributed as dist
    from torchft import Manager, ProcessGroupGloo  # type: ignore[import-not-found]
    from torchft.local_sgd import DiLoCo  # type: ignore[import-not-found]

    store = dist.TCPStore(job.ip, job.port + 1, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    limit = timedelta(seconds=60)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=30)),
        load_state_dict=job.model.load_state_dict,
        state_dict=job.model.state_dict,
        min_replica_size=1,
        use_async_quorum=False,
        init_sync=False,
        timeout=limit,
        quorum_timeout=timedelta(seconds=600),
        rank=0,
        world_size=1,
        store_addr=job.ip,
        store_port=store.port,
        lighthouse_addr=f"http://{min(job.peers.values())}:{job.port}",
        replica_id=job.name,
        hostname=job.ip,
    )
    job.kept += [store, manager]
    parts = job.parts()
    streaming = DiLoCo(
        manager,
        parts,
        job.inner,
        [outer(part.parameters()) for part in parts],
        sync_every=job.every,
        pin_memory=False,
        use_bucketization=job.buckets,
        fragment_sync_delay=job.overlap,
        fragment_update_alpha=0.5 if job.overlap else 0.0,
    )
    return job.inner.step, streaming


def hivemind(job: Job) -> Joined:
    """hivemind's optimizer with local steps: the peers average their parameters every ``every`` steps."""
    import hivemind as library  # type: ignore[import-not-found]

    identity = Path(os.environ["SCRATCH"]) / "first.txt"
    first = min(job.peers.values()) == job.ip
    while not first and not identity.exists():
        time.sleep(0.1)
    initial = [] if first else identity.read_text().split()
    dht = library.DHT(start=True, host_maddrs=[f"/ip4/{job.ip}/tcp/{job.port}"], initial_peers=initial)
    if first:
        fresh = identity.with_suffix(".new")
        fresh.write_text("\n".join(str(one) for one in dht.get_visible_maddrs()))
        fresh.rename(identity)
    optimizer = library.Optimizer(
        dht=dht,
        run_id="diloco",
        target_batch_size=job.every * len(job.peers),
        batch_size_per_step=1,
        optimizer=job.inner,
        use_local_updates=True,
        matchmaking_time=3.0,
        averaging_timeout=60.0,
        delay_state_averaging=job.overlap > 0,
    )
    job.kept.append(dht)
    return optimizer.step, nullcontext()


WAYS = {one.__name__: one for one in (alone, thalweg, gloo, torchft, hivemind)}


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    table = json.loads(sys.argv[2])
    torch.set_num_threads(1)
    job = Job(table)
    say("loaded")
    sys.stdin.readline()
    joining = time.perf_counter()
    step, holds = WAYS[sys.argv[1]](job)
    joined = time.perf_counter()
    say("ready")
    sys.stdin.readline()
    waits = []
    with holds:
        began = time.perf_counter()
        for number in range(1, table["steps"] + 1):
            time.sleep(table["compute"])
            before = time.perf_counter()
            step()
            waits.append(time.perf_counter() - before)
            say(f"step {number}")
        wall = time.perf_counter() - began
        say(json.dumps({"wall": wall, "waits": waits, "joining": joined - joining}))
        sys.stdin.readline()
    say("left")
    sys.stdout.flush()
    os._exit(0)  # some programs have threads that do not end


if __name__ == "__main__":
    main()
