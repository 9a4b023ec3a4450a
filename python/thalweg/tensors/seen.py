"""Recognises that a model is as the last full check found it, in a fraction of that check's time.

Training usually changes values only. Then no tensor has moved, and the names, shapes and ties need no second look.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from operator import is_
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from thalweg.tensors.travelling import Slot

if TYPE_CHECKING:
    import torch

    # A weak reference, so that a tensor that training replaces is freed at once; or a function that returns None.
    Reference = Callable[[], Any]

NO_NAMES: Final[frozenset[str]] = frozenset()


class _Module(NamedTuple):
    """A module: its submodules, and the names of its tensors.

    ``names`` are of submodules, parameters and buffers. ``empty`` has those parameters (True) and buffers (False) that
    are None. ``passing`` are the buffers that are not persistent.
    """

    module: Reference
    names: list[str]
    submodules: list[Reference]
    empty: list[tuple[bool, str]]
    passing: frozenset[str]


class _Tensor(NamedTuple):
    """A tensor that travels: its place in a module, its object, and what the full check reads of it."""

    module: Reference
    is_parameter: bool
    key: str
    tensor: Reference
    memory: tuple[object, ...]


class Seen:
    """A model's modules, names and travelling tensors, as a full check has found them."""

    def __init__(self, model: torch.nn.Module, travelling: Iterable[Slot]) -> None:
        self._modules = [_module(module) for module in model.modules()]
        self._tensors = [_tensor(slot) for slot in travelling]

    def stands(self) -> bool:
        """Return whether the full check would find the same again. It reads no values."""
        try:
            return self._modules_stand() and self._tensors_stand()
        except RuntimeError:  # a tensor whose values are not one block of memory any more
            return False

    def _modules_stand(self) -> bool:
        for reference, names, submodules, empty, passing in self._modules:
            module = reference()
            if module is None or names != _names(module) or passing != _passing(module):
                return False
            if submodules and not all(map(is_, module._modules.values(), [one() for one in submodules])):  # noqa: SLF001
                return False
            for is_parameter, key in empty:
                if _tensors(module, is_parameter)[key] is not None:
                    return False
        return True

    def _tensors_stand(self) -> bool:
        for module, is_parameter, key, reference, memory in self._tensors:
            tensor = reference()
            if tensor is None or _memory(tensor) != memory or _tensors(module(), is_parameter)[key] is not tensor:
                return False
        return True


def _module(module: torch.nn.Module) -> _Module:
    tensors = [
        (is_parameter, key, one)
        for is_parameter in (True, False)
        for key, one in _tensors(module, is_parameter).items()
    ]
    return _Module(
        weakref.ref(module),
        _names(module),
        [_nothing if one is None else weakref.ref(one) for one in module._modules.values()],  # noqa: SLF001
        [(kind, key) for kind, key, one in tensors if one is None],
        frozenset(_passing(module)),
    )


def _tensor(slot: Slot) -> _Tensor:
    is_parameter = slot.key in slot.owner._parameters  # noqa: SLF001
    return _Tensor(weakref.ref(slot.owner), is_parameter, slot.key, weakref.ref(slot.tensor), _memory(slot.tensor))


def _names(module: torch.nn.Module) -> list[str]:
    # A compiled script's mappings have these methods, and cannot be iterated.
    return [*module._modules.keys(), *module._parameters.keys(), *module._buffers.keys()]  # noqa: SLF001


def _tensors(module: torch.nn.Module, is_parameter: bool) -> Mapping[str, torch.Tensor | None]:
    return module._parameters if is_parameter else module._buffers  # noqa: SLF001


def _passing(module: torch.nn.Module) -> set[str] | frozenset[str]:
    names: set[str] | frozenset[str] = getattr(module, "_non_persistent_buffers_set", NO_NAMES)
    return names


def _memory(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.is_contiguous()


def _nothing() -> None:
    """Stand for a submodule that is None."""
