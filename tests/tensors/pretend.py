"""A fake CUDA device for machines without a real one: its tensors, its queue of copies, and calls of CUDA's runtime.

The device's memory is memory of the CPU. Non-blocking copies wait in its queue until the device is used or
synchronised. So a program that reads the target or changes the source too early gets wrong values, as with a real
device.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

CUDA = torch.device("cuda:0")
REFUSED = 1


class Device:
    """The fake device: its queue, and counts of its operations."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], object]] = []
        # Clients in several threads share the device. Whoever waits for it also waits for copies that another one runs.
        self.lock = threading.RLock()
        #: Bytes of each copy, by its direction.
        self.copies: dict[str, list[int]] = {"to device": [], "to host": []}
        #: Bytes of the memory that was allocated on the device.
        self.allocated: list[int] = []
        #: Pinned memory: address -> bytes.
        self.pinned: dict[int, int] = {}
        self.pins = 0
        self.refuses = False

    def synchronize(self, _device: object = None) -> None:
        with self.lock:
            queue, self.queue = self.queue, []
            for copy in queue:
                copy()

    # The part of torch.cuda that the code under test uses. The device itself serves as stream and as event.

    def current_stream(self, _device: object) -> Device:
        return self

    def record_event(self) -> Device:
        return self

    def cudart(self) -> Device:
        return self

    def cudaHostRegister(self, address: int, size: int, _flags: int) -> int:  # noqa: N802 - CUDA's name
        if self.refuses or address in self.pinned:
            return REFUSED
        self.pinned[address] = size
        self.pins += 1
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - CUDA's name
        if self.pinned.pop(address, None) is None:
            raise ValueError(f"memory at {address} is not pinned")
        return 0

    def cudaGetErrorString(self, _failure: int) -> str:  # noqa: N802 - CUDA's name
        return "no more memory may be pinned"

    def copy(self, target: torch.Tensor, source: torch.Tensor, *, blocks: bool) -> None:
        """Copy between the device and the host, or on the device."""
        on_device = isinstance(target, Pretend), isinstance(source, Pretend)
        into, values = plain(target), plain(source)
        if on_device != (True, True):
            self.copies["to device" if on_device[0] else "to host"].append(values.nbytes)
        with self.lock:
            self.queue.append(partial(into.copy_, values))
        if blocks:
            self.synchronize()


DEVICE = Device()


class Pretend(torch.Tensor):
    """A tensor on the fake device."""

    #: The tensor's memory, as a tensor of the CPU.
    memory: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def of(values: torch.Tensor) -> Pretend:
        # PyTorch has this device type for back ends whose kernels are outside of PyTorch.
        made: Pretend = torch.Tensor._make_subclass(
            Pretend, values, False, dispatch_device=True, device_for_backend_keys=CUDA
        )
        made.memory = values
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return CUDA

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, _types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        own: dict[Any, Callable[..., Any]] = {
            torch.ops.prim.device.default: lambda _tensor: CUDA,
            torch.ops.aten.copy_.default: _copy,
            torch.ops.aten._foreach_copy_.default: _copy_all,
        }
        if func in own:
            return own[func](*args, **kwargs)
        if func is torch.ops.aten._to_copy.default and kwargs.get("device", CUDA) != CUDA:
            raise AssertionError("a whole tensor is copied to new memory of the CPU")
        if not func.is_view:
            DEVICE.synchronize()
        known = {
            plain(tensor).untyped_storage().data_ptr() for tensor in tree_leaves((args, kwargs)) if is_tensor(tensor)
        }
        given = func(*tree_map(plain, args), **tree_map(plain, dict(kwargs)))
        if func._schema.name.endswith("_"):
            return args[0] if is_tensor(args[0]) else None

        def wrap(one: Any) -> Any:
            if not is_tensor(one):
                return one
            if one.untyped_storage().data_ptr() not in known:
                DEVICE.allocated.append(one.untyped_storage().nbytes())
            return Pretend.of(one)

        return tree_map(wrap, given)


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    DEVICE.copy(target, source, blocks=not non_blocking)
    return target


def _copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], non_blocking: bool = False) -> None:
    for target, source in zip(targets, sources, strict=True):
        DEVICE.copy(target, source, blocks=not non_blocking)


def is_tensor(one: object) -> bool:
    return isinstance(one, torch.Tensor)


def plain(one: Any) -> Any:
    """Return the memory of a tensor on the device as a tensor of the CPU, and anything else unchanged."""
    return one.memory if isinstance(one, Pretend) else one


def moved(model: nn.Module) -> nn.Module:
    """Move a model's parameters and buffers to the fake device, and reset its counts."""
    for owner in model.modules():
        for key, parameter in owner.named_parameters(recurse=False):
            owner.register_parameter(key, nn.Parameter(Pretend.of(parameter.detach().clone()), parameter.requires_grad))
        for key, buffer in owner.named_buffers(recurse=False):
            owner.register_buffer(key, Pretend.of(buffer.clone()))
    DEVICE.allocated.clear()
    return model


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A new fake device, which replaces torch.cuda's in this test."""
    DEVICE.__init__()  # type: ignore[misc]
    for name in ("cudart", "current_stream", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, getattr(DEVICE, name))
    yield DEVICE
    gc.collect()  # so that arenas of this test are unpinned while its device still exists
