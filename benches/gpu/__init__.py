"""Measures a model on CUDA: its copies, beside plain copies to pinned memory, and its rounds, beside those on the CPU.

By turns, for VGG-16 (528 MiB, few large tensors) and GPT-2-mini (3.3 MiB, many small ones):

- plain: each tensor is copied to and from a pinned tensor of PyTorch. This is the bound.
- thalweg: the same tensors are copied from and to the pinned arena, with all checks of a round.
- unchecked: the same without the checks, to show their cost.
- Flower: flwr 1.42 converts a ``state_dict`` to the bytes of a message and back.

Then rounds of one client, whose model is on CUDA or on the CPU, and of four clients on one GPU. Both jobs must give the
same bits. benches/gpu/results has results by device and date.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from benches.common import Figure, Spread, note
from thalweg import Client, Server, fedavg
from thalweg.tensors import device
from thalweg.tensors.binding import bind

REPETITIONS: Final = 15
ROUNDS: Final = 9
#: The goal, as a share of the rate of the plain copies.
LIMIT: Final = 0.9


def vgg16() -> Any:
    from torchvision.models import vgg16 as build

    return build()


def gpt2_mini() -> Any:
    from thalweg.models.gpt2 import build

    return build("gpt2-mini", 0)


MODELS: Final[dict[str, Callable[[], Any]]] = {"VGG-16": vgg16, "GPT-2-mini": gpt2_mini}


def gpu() -> list[Figure]:
    """Measure all figures. Without a CUDA device return a single figure, which says so."""
    import torch

    if not torch.cuda.is_available():
        return [Figure("a model on CUDA", "not measured: no CUDA device here", f"{LIMIT} of plain copies", None)]
    figures = [_failure()]
    for name, build in MODELS.items():
        note(f"{name} on {torch.cuda.get_device_name()}")
        figures += [*_copies(name, build), *(_rounds(name, build, link) for link in ("shm", "tcp"))]
    figures.append(_rounds("VGG-16", vgg16, "shm", clients=4))
    for figure in figures:
        figure.details["device"] = _device()
    return figures


def _device() -> dict[str, str]:
    """Return the names and versions on which the figures depend."""
    import torch

    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
    }


def timed(work: Callable[[], object]) -> float:
    """Return the seconds until the device has ended the work that ``work`` queues."""
    import torch

    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


class Plain:
    """The bound: a pinned tensor for each tensor of the model, and copies that do not block."""

    def __init__(self, model: Any) -> None:
        import torch

        self.device = [tensor.detach() for tensor in model.state_dict().values()]
        self.host = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in self.device]

    def down(self) -> None:
        """Copy from the device."""
        for host, there in zip(self.host, self.device, strict=True):
            host.copy_(there, non_blocking=True)

    def up(self) -> None:
        """Copy to the device."""
        for host, there in zip(self.host, self.device, strict=True):
            there.copy_(host, non_blocking=True)


class Flower:
    """flwr's ArrayRecord.from_torch_state_dict and to_torch_state_dict, with what they call, for a model on CUDA."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.message: dict[str, bytes] = {}

    def down(self) -> None:
        """Convert the model to the bytes of a message."""
        self.message = {name: self._saved(tensor) for name, tensor in self.model.state_dict().items()}

    @staticmethod
    def _saved(tensor: Any) -> bytes:
        buffer = io.BytesIO()
        np.save(buffer, tensor.detach().cpu().numpy(), allow_pickle=False)
        return buffer.getvalue()

    def up(self) -> None:
        """Convert the bytes of a message to the model."""
        import torch

        arrays = {name: np.load(io.BytesIO(data), allow_pickle=False) for name, data in self.message.items()}
        self.model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})


class Ours:
    """The copies and checks of a round, before and after training."""

    def __init__(self, model: Any) -> None:
        self.bound = bind(model)

    def down(self) -> None:
        self.bound.collect("train()")

    def up(self) -> None:
        self.bound.restore("the last round")


class Unchecked:
    """The copies of ``Ours``, without the checks of the tensors."""

    def __init__(self, ours: Ours) -> None:
        self.copies = ours.bound.copies
        arena, state = ours.bound.arena, ours.bound.model.state_dict()
        self.pairs = [(state[name], arena.tensor(name)) for name in arena]

    def down(self) -> None:
        if self.copies is not None:
            self.copies.store(self.pairs)

    def up(self) -> None:
        if self.copies is not None:
            self.copies.load(self.pairs, wait=True)


def _copies(name: str, build: Callable[[], Any]) -> list[Figure]:
    import torch

    torch.manual_seed(1)
    model = build().cuda()
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    ours = Ours(model)
    ways = {"plain": Plain(model), "thalweg": ours, "unchecked": Unchecked(ours), "Flower": Flower(model)}
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ours.down()
    ours.up()
    extra = torch.cuda.max_memory_allocated() - before
    # The plain way is measured twice, which shows how much two measurements of the same thing differ.
    turns: list[tuple[str, Any]] = [*ways.items(), ("plain again", ways["plain"])]
    seconds: dict[tuple[str, str], list[float]] = {}
    for turn in range(REPETITIONS + 2):
        for way, copies in turns:
            for direction in ("down", "up"):
                taken = timed(getattr(copies, direction))
                if turn >= 2:
                    seconds.setdefault((way, direction), []).append(taken)
    figures = []
    for direction, words in (("down", "from the device"), ("up", "to the device")):
        spread = {way: Spread.of(seconds[way, direction]) for way, _ in turns}
        ratio = spread["plain"].median / spread["thalweg"].median
        times = ", ".join(f"{way} {one.text(1e3, 3)} ms" for way, one in spread.items())
        value = f"{times}; thalweg {size / spread['thalweg'].median / 1e9:.1f} GB/s, ratio {ratio:.2f}"
        details = {"bytes": size, "seconds": {way: seconds[way, direction] for way, _ in turns}, "ratio": ratio}
        figures.append(Figure(f"{name}, {words}", value, f"{LIMIT} of plain copies", ratio >= LIMIT, details))
    bound = ours.bound
    pinned = bound.arena.tensor(next(iter(bound.arena))).is_pinned()
    chunks = 0 if bound.copies is None else bound.copies.to_device.chunks // (2 * REPETITIONS + 5)
    value = (
        f"{extra} B more on the device during copies, arena pinned: {pinned}, "
        f"{len(bound.arena)} tensors in {chunks} chunks"
    )
    figures.append(Figure(f"{name}, no second model on the device", value, "0 B, pinned", extra == 0 and pinned))
    return figures


class App:
    """Trains nothing: each parameter changes in place by an operation that gives the same bits on every device."""

    def __init__(self, build: Callable[[], Any], device: str) -> None:
        self.build, self.device = build, device

    def model(self) -> Any:
        import torch

        torch.manual_seed(1)
        return self.build().to(self.device)

    def train(self, model: Any, _data: object, _config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        import torch

        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.125)
        return 1, {}


class Job:
    """A server on the CPU, and clients whose models are on ``device``."""

    def __init__(self, build: Callable[[], Any], device: str, url: str, clients: int) -> None:
        self.server = Server(App(build, "cpu"), clients=clients, listen=url, deterministic=clients > 1)
        self.clients = [
            Client(App(build, device), self.server.address, name=f"client-{number}") for number in range(clients)
        ]
        self.threads = [threading.Thread(target=client.run) for client in self.clients]
        for thread in self.threads:
            thread.start()
        self.server.wait()

    def round(self) -> float:
        started = time.perf_counter()
        next(fedavg(self.server, 1))
        return time.perf_counter() - started

    def bits(self) -> bytes:
        return np.asarray(self.server.arena.core).tobytes()

    def close(self) -> None:
        self.server.close()
        for thread in self.threads:
            thread.join()


def _rounds(name: str, build: Callable[[], Any], link: str, clients: int = 1) -> Figure:
    """Run rounds of two jobs in turn: the models of one job's clients are on CUDA, of the other's on the CPU."""
    import torch

    jobs = {where: Job(build, where, f"{link}://127.0.0.1:0", clients) for where in ("cuda", "cpu")}
    seconds: dict[str, list[float]] = {where: [] for where in jobs}
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    equal = True
    for _ in range(ROUNDS + 1):
        for where, job in jobs.items():
            seconds[where].append(job.round())
        equal = equal and jobs["cuda"].bits() == jobs["cpu"].bits()
    extra = torch.cuda.max_memory_allocated() - held
    arenas = [client.arena for client in jobs["cuda"].clients]
    pinned = all(arena.tensor(next(iter(arena))).is_pinned() for arena in arenas)
    for job in jobs.values():
        job.close()
    spread = {where: Spread.of(times[1:]) for where, times in seconds.items()}
    value = (
        f"model on CUDA {spread['cuda'].text(1e3, 2)} ms, on the CPU {spread['cpu'].text(1e3, 2)} ms, bits equal: "
        f"{equal}, {extra} B more on the device, pinned: {pinned}"
    )
    label = f"{name}, a round of {clients} {'client' if clients == 1 else 'clients'} over {link}"
    details = {"seconds": seconds, "bits_equal": equal, "extra_bytes": extra}
    return Figure(label, value, "bits equal, 0 B more", equal and extra == 0, details)


def _failure() -> Figure:
    """Check that a refused pin gives a reason and no later error. CUDA refuses to pin memory that is pinned already."""
    import torch

    model = torch.nn.Linear(1024, 1024).cuda()
    first = bind(model)
    said = device.pin(first.arena.core)
    sane = torch.ones(3, device="cuda").sum().item() == 3
    value = f"CUDA says {said!r}; the next kernel ran: {sane}"
    return Figure("a pin that CUDA refuses", value, "a reason, and no later error", bool(said) and sane)
