"""Finds the tensors of a PyTorch module that travel. A tied tensor has several names, and travels once."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from thalweg import _core
from thalweg.errors import ModelError
from thalweg.tensors.arena import describe_tensor
from thalweg.tensors.choosing import Choice, Named

if TYPE_CHECKING:
    import torch

# The part that torch.compile puts in front of names of the module that it wraps.
COMPILED: Final = "_orig_mod"


class Slot(NamedTuple):
    """A named place for a tensor in a module (attribute ``key`` of ``owner``), and the tensor that is there now."""

    owner: torch.nn.Module
    key: str
    tensor: torch.Tensor


@dataclass
class Group:
    """A tensor of a module with all its names. It travels under the first one.

    ``apart`` are names whose tensor is another object over the same memory.
    """

    names: list[str]
    tensor: torch.Tensor
    trainable: bool
    apart: set[str] = field(default_factory=set)

    @property
    def named(self) -> Named:
        return Named(self.names, self.trainable)


class Chosen(NamedTuple):
    """The tensors of a module that travel (``groups``), and their layout.

    ``known`` has the names of all tensors, ``total`` their number. ``staying`` names chosen entries of ``state_dict()``
    that cannot travel. ``personal``: some tensor that training may change does not travel.
    """

    groups: Sequence[Group]
    layout: _core.Layout
    known: frozenset[str]
    total: int
    staying: Sequence[str]
    personal: bool


def chosen(module: torch.nn.Module, choice: Choice) -> Chosen:
    """Return the tensors of a module that travel. Raises ModelError if one cannot be moved into an arena."""
    grouped = groups(module)
    others = [Named([name], None) for name in _beside(module, grouped)]
    travels = choice.of([group.named for group in grouped], others)
    staying = [name for other in others if choice.takes(other) for name in other.names]
    travelling = [group for group, wanted in zip(grouped, travels, strict=True) if wanted]
    layout = _core.Layout([describe_tensor(group.names[0], group.tensor) for group in travelling])
    _refuse_shared(grouped, {group.names[0] for group in travelling})
    names = frozenset(name for group in grouped for name in group.names)
    personal = any(_changes(group) for group, wanted in zip(grouped, travels, strict=True) if not wanted)
    return Chosen(travelling, layout, names, len(grouped), staying, personal)


def _changes(group: Group) -> bool:
    """Return whether training may change a tensor: it is trainable, or a floating-point buffer such as BatchNorm's."""
    import torch

    is_buffer = not isinstance(group.tensor, torch.nn.Parameter)
    return group.trainable or (is_buffer and group.tensor.is_floating_point())


def slots(module: torch.nn.Module) -> dict[str, Slot]:
    """Return a module's parameters and persistent buffers by name, in ``state_dict`` order. Tied ones have several."""
    by_name: dict[str, Slot] = {}
    for path, owner in module.named_modules(remove_duplicate=False):
        prefix = "".join(f"{part}." for part in _plain(path))
        # These dicts are what named_parameters() and named_buffers() read, which take several times as long.
        for key, parameter in owner._parameters.items():  # noqa: SLF001
            if parameter is not None:
                by_name[prefix + key] = Slot(owner, key, parameter)
        passing = getattr(owner, "_non_persistent_buffers_set", ())
        for key, buffer in owner._buffers.items():  # noqa: SLF001
            if buffer is not None and key not in passing:
                by_name[prefix + key] = Slot(owner, key, buffer)
    return by_name


def groups(module: torch.nn.Module) -> list[Group]:
    """Return a module's tensors. Tied ones make one group, whether one object or several over the same memory."""
    by_memory: dict[Any, Group] = {}
    for name, (_, _, tensor) in slots(module).items():
        memory = memory_of(tensor)
        group = by_memory.setdefault(memory, Group([], tensor, trainable=False))
        group.names.append(name)
        group.trainable |= tensor.requires_grad
        if tensor is not group.tensor:
            group.apart.add(name)
    return list(by_memory.values())


def _beside(module: torch.nn.Module, grouped: Iterable[Group]) -> list[str]:
    """Return the names of entries of ``state_dict()`` that are none of the tensors found.

    Examples are results of ``get_extra_state()``, and packed weights of quantised layers.
    """
    import torch

    groups = list(grouped)
    names = {name for group in groups for name in group.names}
    places = {address_of(group.tensor) for group in groups} - {None}
    entries = {".".join(_plain(name)): value for name, value in module.state_dict().items()}
    return [
        name
        for name, value in entries.items()
        if name not in names and not (isinstance(value, torch.Tensor) and address_of(value) in places)
    ]


def _plain(path: str) -> list[str]:
    """Return the parts of a name, without those that torch.compile adds."""
    return [part for part in path.split(".") if part and part != COMPILED]


def address_of(tensor: torch.Tensor) -> int | None:
    """Return the address of a tensor's values; None if it has none, or they are not one block of memory."""
    import torch

    if torch.nn.parameter.is_lazy(tensor) or tensor.layout != torch.strided:
        return None
    try:
        return tensor.data_ptr() or None
    except RuntimeError:  # a class that only imitates a tensor, such as some quantised weights
        return None


def memory_of(tensor: torch.Tensor) -> object:
    """Return a key that two tensors share exactly if they have the same memory, dtype, shape and strides."""
    address = address_of(tensor)
    if address is None:
        return id(tensor)
    return tensor.device, address, tensor.dtype, tensor.shape, tensor.stride()


def _refuse_shared(grouped: Iterable[Group], moving: Container[str]) -> None:
    """Refuse tensors that overlap in memory: in an arena each gets memory of its own, which would silently untie them.

    Raises ModelError.
    """
    placed = ((address_of(group.tensor), group) for group in grouped)
    refuse_overlaps(
        (
            (address, address + group.tensor.nbytes, group.names[0])
            for address, group in placed
            if address is not None and group.tensor.is_contiguous()
        ),
        moving,
    )


def refuse_overlaps(spans: Iterable[tuple[int, int, str]], moving: Container[str]) -> None:
    """Raise ModelError if two spans (first byte, byte after the last, name) overlap and one of them moves."""
    # The furthest end among the spans that begin before the current one: of all spans, and of the spans that move.
    furthest = furthest_moving = (0, "")
    for begin, end, name in sorted(spans):
        reach, other = furthest if name in moving else furthest_moving
        if begin < reach:
            raise ModelError(
                f"the tensors {other!r} and {name!r} share memory",
                "Keep one of them, or give each memory of its own: tensor.clone(), array.copy()",
            )
        furthest = max(furthest, (end, name))
        if name in moving:
            furthest_moving = max(furthest_moving, (end, name))
