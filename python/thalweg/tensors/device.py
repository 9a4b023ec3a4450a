"""Copies a model between an accelerator and its arena.

A model on an accelerator stays there. The arena is in the CPU's memory, since links send from it and receive into it.
So values are copied between the two: to the device before training, to the arena after it. Each tensor is copied
straight to its place, so there is no second model on either side. CUDA copies fastest from and to memory that is
pinned, which means that the system never moves or swaps it. An arena is pinned once, in place, until nobody uses it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from thalweg import _core

if TYPE_CHECKING:
    import torch

    # A tensor of the model, and the view of its place in the arena.
    Pair = tuple[torch.Tensor, torch.Tensor]

#: Most bytes of one copy, unless one row of a tensor is longer. CUDA copies a tensor that is not contiguous through
#: temporary memory on the device, and this bounds that memory.
CHUNK: Final = 32 << 20
# The flag cudaHostRegisterPortable: the memory is pinned for all devices, not only for the current one.
PORTABLE: Final = 1


@dataclass
class Copied:
    """What was copied in one direction since the model was bound."""

    chunks: int = 0
    bytes: int = 0


class DeviceCopies:
    """Copies between an arena and the tensors of a model on accelerators, and counts them.

    On CUDA, copies are queued on the device's current stream. On other accelerators each copy has ended when its call
    returns.
    """

    def __init__(self, core: _core.Arena, devices: Iterable[torch.device]) -> None:
        """Pin the arena if one of the devices is a CUDA device; ``unpinned`` says why if that fails."""
        self._cuda = sorted({device for device in devices if device.type == "cuda"}, key=str)
        #: Why the arena is not pinned, or None if it is.
        self.unpinned: str | None = None if self._cuda else "only CUDA pins memory"
        self.to_device, self.to_arena = Copied(), Copied()
        self._pending: Sequence[Any] = ()
        if self._cuda and len(core):
            self.unpinned = pin(core)
            if self.unpinned is None:
                weakref.finalize(self, _unpin, core, self._cuda)

    def load(self, pairs: Iterable[Pair], *, wait: bool) -> None:
        """Copy the arena's values to the device. Without ``wait`` the copies may still run at the return.

        The current stream then runs them before anything that is queued later, and the arena must not change before
        ``wait``.
        """
        self._copy(self.to_device, pairs)
        if wait:
            self.wait()

    def store(self, pairs: Iterable[Pair]) -> None:
        """Copy the device's values to the arena, when the device has ended all work, and wait until they are there."""
        import torch

        for device in self._cuda:
            torch.cuda.synchronize(device)
        self._copy(self.to_arena, ((view, tensor) for tensor, view in pairs))
        self.wait()

    def wait(self) -> None:
        """Wait until all copies have ended."""
        pending, self._pending = self._pending, ()
        for event in pending:
            event.synchronize()

    def _copy(self, count: Copied, pairs: Iterable[Pair]) -> None:
        """Copy the values of the second tensor of each pair to the first."""
        import torch

        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        # In this mode PyTorch also lets tensors be changed that were made in it, or that are trained.
        with torch.inference_mode():
            for target, source in pairs:
                size = source.nbytes
                count.bytes += size
                if size > CHUNK and source.dim():
                    rows = max(1, CHUNK * source.shape[0] // size)
                    targets += torch.split(target, rows)
                    sources += torch.split(source, rows)
                elif size:
                    targets.append(target)
                    sources.append(source)
            count.chunks += len(sources)
            if sources:
                torch._foreach_copy_(targets, sources, non_blocking=bool(self._cuda))
        self._pending = [torch.cuda.current_stream(device).record_event() for device in self._cuda]


def pin(core: _core.Arena) -> str | None:
    """Pin an arena's memory; return the reason if that is impossible."""
    import torch

    cuda: Any = torch.cuda
    runtime = cuda.cudart()
    failure = runtime.cudaHostRegister(core.address, len(core), PORTABLE)
    if not int(failure):
        return None
    # CUDA reports this failure again at the next kernel, which would blame that one: so a kernel is started here.
    with suppress(RuntimeError):
        torch.ones(1, device="cuda").neg_()
    return str(runtime.cudaGetErrorString(failure))


def _unpin(core: _core.Arena, devices: Sequence[torch.device]) -> None:
    """Let the system move the memory again. ``core`` is an argument so that the memory exists until then."""
    import torch

    for device in devices:
        torch.cuda.synchronize(device)
    cuda: Any = torch.cuda
    cuda.cudart().cudaHostUnregister(core.address)
