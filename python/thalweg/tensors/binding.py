"""A model bound to an arena, and the rule that what is sent is what was trained.

The arena is the only memory that travels. Code that trains can move a tensor out of it without a word: by
``p.data = ...``, ``module.to(...)``, ``load_state_dict(assign=True)``, a new ``nn.Parameter``, another submodule.
So each tensor is looked at before it is trained and before it is sent. One that moved is brought back: its values are
copied, and the model is made to use the arena again. One that has another shape or element type, is gone, or is new
is an error. The check costs a few microseconds a tensor and reads none of their values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from thalweg import _core
from thalweg.errors import ModelError
from thalweg.tensors.arena import Arena, describe_array
from thalweg.tensors.choosing import Choice, Named
from thalweg.tensors.travelling import Group, Slot, address_of, chosen, refuse_overlaps, slots
from thalweg.ui.phrases import listed
from thalweg.ui.units import format_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

Model: TypeAlias = "torch.nn.Module | Mapping[str, Any]"
Words: TypeAlias = "str | Iterable[str] | None"

IN_PLACE: Final = (
    "Train the tensors of the model that train() is given, in place; make changes of its structure in model()"
)
SAMPLES: Final = 1024
SAMPLE_BYTES: Final = 64


class Binding(ABC):
    """A model whose chosen tensors lie in an arena. ``model`` is what the app is given."""

    model: Any
    arena: Arena
    #: Whether a tensor that training changes does not travel, so that each party's model is different.
    personal: bool
    _choice: Choice
    # Tensors of the model, tied ones as one, whether they travel or not.
    _total: int
    # Entries of the model's state_dict() that cannot travel, until ``untold`` has returned them.
    _staying: Sequence[str] = ()

    def collect(self, when: str) -> list[str]:
        """Bring the model's values into the arena, where they are not; return the names of what had to be copied.

        ``when`` says in errors what has just happened, as "train()". Raises ModelError, and has changed nothing then.
        """
        return self._settle(when, from_model=True)

    def restore(self, when: str) -> list[str]:
        """Make the model use the arena's values, wherever it has others; return the names. Raises ModelError."""
        return self._settle(when, from_model=False)

    def sample(self) -> bytes:
        """Return some of the arena's bytes, from all over it: what training is expected to change somewhere."""
        import numpy as np

        content = np.asarray(self.arena.core)
        blocks = content[: content.size // SAMPLE_BYTES * SAMPLE_BYTES].reshape(-1, SAMPLE_BYTES)
        return blocks[:: max(1, len(blocks) // SAMPLES)].tobytes() or content.tobytes()

    def untold(self) -> Sequence[str]:
        """Return the entries of the model's ``state_dict()`` that cannot travel, at the first call only."""
        staying, self._staying = self._staying, ()
        return staying

    def summary(self) -> str:
        """Say in one line what travels."""
        count, size = len(self.arena), format_bytes(len(self.arena.core))
        few = "" if self._choice.is_all else f" of {self._total}, as tensors = {self._choice} says"
        return f"tensors in an update: {count}{few}, {size}"

    @abstractmethod
    def _settle(self, when: str, *, from_model: bool) -> list[str]:
        """Make model and arena one again; return the names of the tensors that were not."""


def bind(model: Model, tensors: Words = None, *, shared: bool = False) -> Binding:
    """Move a model's values into an arena of its own. Raises ModelError.

    Of a module the parameters and persistent buffers become views of the arena, tied ones once; optimisers keep their
    references. Of a mapping of NumPy arrays ``binding.model`` is a dict of views. ``tensors`` says which travel.
    ``shared``: peers on this machine take them without a copy, where the transport can.
    """
    binding = _binding(model, Choice(tensors), None, shared=shared)
    binding.collect("binding the model")
    return binding


def attach(model: Model, core: _core.Arena, tensors: Words = None) -> Binding:
    """Bind a model to an arena that is there, whose values win. Raises ModelError if the layouts differ."""
    binding = _binding(model, Choice(tensors), core, shared=False)
    binding.restore("binding the model")
    return binding


def _binding(model: Any, choice: Choice, core: _core.Arena | None, *, shared: bool) -> Binding:
    if isinstance(model, Mapping):
        return _not_empty(ArrayBinding(model, choice, core, shared=shared))
    if not callable(getattr(model, "named_modules", None)):
        raise ModelError(
            f"the model is a {type(model).__name__}", "Use a torch.nn.Module, or a dict of NumPy arrays by name"
        )
    return _not_empty(ModuleBinding(model, choice, core, shared=shared))


def _not_empty(binding: Binding) -> Binding:
    """Raise ModelError for a model of which nothing travels."""
    if not len(binding.arena):
        staying = binding.untold()
        cause = f"; its state_dict() has {listed(staying)}, which cannot travel" if staying else ""
        raise ModelError(f"the model has no tensor that travels{cause}", "Give it parameters, buffers or arrays")
    return binding


def check_layout(job: _core.Layout, own: _core.Layout) -> None:
    """Raise ModelError with the first tensor that differs, if a model's layout is not the job's."""
    difference = own.difference(job, "in this model", "in the job's")
    if difference is not None:
        raise ModelError(
            f"the model differs from the job's: {difference}",
            "Use the same model, and the same choice of tensors, at both ends",
        )


@dataclass(frozen=True)
class Place:
    """A tensor's place in the arena: its names, what it is like, and where its first byte is."""

    names: Sequence[str]
    apart: frozenset[str]
    dtype: torch.dtype
    shape: torch.Size
    address: int

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is this very memory, and means the same values."""
        if tensor.dtype != self.dtype or tensor.shape != self.shape:
            return False
        return not tensor.numel() or (address_of(tensor) == self.address and tensor.is_contiguous())


class ModuleBinding(Binding):
    """A PyTorch module in an arena."""

    def __init__(
        self, module: torch.nn.Module, choice: Choice, core: _core.Arena | None = None, *, shared: bool = False
    ) -> None:
        """Find the places of the tensors that travel. The module does not use them until the values are settled."""
        taken = chosen(module, choice)
        if core is not None:
            check_layout(core.layout, taken.layout)
        self.model = module
        self.arena = Arena(_core.Arena(taken.layout, shared=shared) if core is None else core)
        self._choice = choice
        self._known, self._total, self._staying = taken.known, taken.total, taken.staying
        self.personal = taken.personal
        self._places = [self._place(group) for group in taken.groups]

    def _place(self, group: Group) -> Place:
        view = self.arena.tensor(group.names[0])
        return Place(group.names, frozenset(group.apart), view.dtype, view.shape, view.data_ptr())

    def _settle(self, when: str, *, from_model: bool) -> list[str]:
        import torch

        found = slots(self.model)
        moved = [place for place in self._places if not _is_settled(place, found)]
        if moved:
            self._check(moved, found, when)
        self._check_new(found, when)
        if not moved:
            return []
        with torch.no_grad():
            # New views each time: share_memory_() moves what is beneath a tensor, and beneath all views of it.
            views = [self.arena.tensor(place.names[0]) for place in moved]
            if from_model:
                self._check_ties(moved, found, when)
                self._copy([found[place.names[0]].tensor.detach() for place in moved], views)
            for place, view in zip(moved, views, strict=True):
                _use(place, found, view)
        return [place.names[0] for place in moved]

    def _check(self, moved: Iterable[Place], found: Mapping[str, Slot], when: str) -> None:
        """Raise ModelError if tensors that moved are gone, not what they were, or one with another."""
        for place in moved:
            for name in place.names:
                if name not in found:
                    raise ModelError(f"after {when} the model has no tensor {name!r} any more", IN_PLACE)
                _check_kind(name, found[name].tensor, place, when)
        firsts: dict[int, str] = {}
        for place in self._places:
            name = place.names[0]
            first = firsts.setdefault(id(found[name].tensor), name)
            if first != name:
                raise ModelError(f"after {when} the tensors {first!r} and {name!r} are one", IN_PLACE)

    def _check_new(self, found: Mapping[str, Slot], when: str) -> None:
        """Raise ModelError for tensors that are new and would travel."""
        for name in found.keys() - self._known:
            if self._choice.takes(Named([name], found[name].tensor.requires_grad)):
                raise ModelError(f"after {when} the model has a new tensor {name!r}", IN_PLACE)

    def _check_ties(self, moved: Iterable[Place], found: Mapping[str, Slot], when: str) -> None:
        """Raise ModelError if tensors that were tied have different values now: only one of them can travel."""
        for place in moved:
            first, *others = place.names
            for other in others:
                if not _same(found[first].tensor, found[other].tensor):
                    raise ModelError(
                        f"after {when} the tensors {first!r} and {other!r}, which were tied, have different values",
                        "Keep them tied, or make them two tensors in model()",
                    )

    def _copy(self, sources: Sequence[torch.Tensor], views: Sequence[torch.Tensor]) -> None:
        """Copy values into their places. One may lie in another's place, as after two tensors were swapped."""
        begin, end = self.arena.core.address, self.arena.core.address + len(self.arena.core)
        safe = [source.clone() if begin <= source.data_ptr() < end else source for source in sources]
        for view, source in zip(views, safe, strict=True):
            view.copy_(source)


def _is_settled(place: Place, found: Mapping[str, Slot]) -> bool:
    """Return whether all names of a place are there, and its memory is behind each."""
    slot = found.get(place.names[0])
    if slot is None or not place.holds(slot.tensor):
        return False
    for name in place.names[1:]:
        other = found.get(name)
        if other is None or not (place.holds(other.tensor) if name in place.apart else other.tensor is slot.tensor):
            return False
    return True


def _check_kind(name: str, tensor: torch.Tensor, place: Place, when: str) -> None:
    import torch

    if (tensor.dtype, tensor.shape, tensor.layout) == (place.dtype, place.shape, torch.strided):
        if tensor.is_meta:
            raise ModelError(f"after {when} the tensor {name!r} is on the device meta and has no values", IN_PLACE)
        if tensor.numel() and address_of(tensor) is None:
            kind = type(tensor).__name__
            raise ModelError(f"after {when} the tensor {name!r} is a {kind}, whose values are not plain", IN_PLACE)
        return
    was, now = (f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in (place, tensor))
    form = "" if tensor.layout == torch.strided else f" in the form {str(tensor.layout).removeprefix('torch.')}"
    raise ModelError(f"after {when} the tensor {name!r} is {now}{form}; it was {was}", IN_PLACE)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same bytes, or are one."""
    import torch

    if one is other or (one.device == other.device and one.data_ptr() == other.data_ptr()):
        return True
    one, other = (t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(one, other)


def _use(place: Place, found: Mapping[str, Slot], view: torch.Tensor) -> None:
    """Make the model use the arena's view under all names of a place."""
    first = _point(found[place.names[0]], view)
    for name in place.names[1:]:
        if name in place.apart:
            _point(found[name], view)
        elif found[name].tensor is not first:
            setattr(found[name].owner, found[name].key, first)


def _point(slot: Slot, view: torch.Tensor) -> torch.Tensor:
    """Make the tensor in a slot a view of the arena and return it; it stays the same object where that can be."""
    import torch

    tensor = slot.tensor
    if not tensor.is_inference():
        try:
            tensor.data = view
        except RuntimeError:  # of a kind that cannot take over another's memory
            pass
        else:
            return tensor
    fresh = view.detach()
    if isinstance(tensor, torch.nn.Parameter):
        fresh = torch.nn.Parameter(fresh, requires_grad=tensor.requires_grad)
    setattr(slot.owner, slot.key, fresh)
    return fresh


class ArrayBinding(Binding):
    """A dict of NumPy arrays in an arena: ``model`` is a new dict, whose chosen arrays are views."""

    def __init__(
        self, arrays: Mapping[str, Any], choice: Choice, core: _core.Arena | None = None, *, shared: bool = False
    ) -> None:
        """Find the places of the arrays that travel. They are copied there when they are collected."""
        travels = choice.of([Named([name], None) for name in arrays])
        self._names = [name for name, chosen in zip(arrays, travels, strict=True) if chosen]
        layout = _core.Layout([describe_array(name, arrays[name]) for name in self._names])
        if core is not None:
            check_layout(core.layout, layout)
        refuse_overlaps(_spans(arrays), set(self._names))
        self._choice, self._known, self._total = choice, set(arrays), len(arrays)
        self.personal = len(self._names) < len(arrays)
        self.arena = Arena(_core.Arena(layout, shared=shared) if core is None else core)
        self.model: dict[str, Any] = dict(arrays)

    def _settle(self, when: str, *, from_model: bool) -> list[str]:
        import numpy as np

        found = {name: np.asarray(self.model[name]) for name in self._names if name in self.model}
        views = {name: self.arena[name] for name in self._names}
        self._check(found, views, when)
        moved = [name for name, view in views.items() if not _is_view(found[name], view)]
        if from_model:
            # Copies first: one may lie in another's place.
            for name, values in [(name, found[name].copy()) for name in moved]:
                views[name][...] = values
        self.model.update({name: views[name] for name in moved})
        return moved

    def _check(self, found: Mapping[str, npt.NDArray[Any]], views: Mapping[str, npt.NDArray[Any]], when: str) -> None:
        for name, view in views.items():
            if name not in found:
                raise ModelError(f"after {when} the model has no array {name!r} any more", IN_PLACE)
            array = found[name]
            # Bytes in another order are converted when they are copied.
            if (array.dtype.newbyteorder("="), array.shape) != (view.dtype, view.shape):
                was, now = (f"{a.dtype}{list(a.shape)}" for a in (view, array))
                raise ModelError(f"after {when} the array {name!r} is {now}; it was {was}", IN_PLACE)
        for name in self.model.keys() - self._known:
            if self._choice.takes(Named([name], None)):
                raise ModelError(f"after {when} the model has a new array {name!r}", IN_PLACE)


def _spans(arrays: Mapping[str, Any]) -> Iterator[tuple[int, int, str]]:
    """Yield the memory of each array that is one block: first byte, byte behind it, name."""
    import numpy as np

    for name, array in arrays.items():
        if isinstance(array, np.ndarray) and array.size and array.flags.c_contiguous:
            yield _address(array), _address(array) + array.nbytes, name


def _is_view(array: npt.NDArray[Any], view: npt.NDArray[Any]) -> bool:
    same = _address(array) == _address(view) and array.dtype == view.dtype
    return not array.size or (same and array.flags.c_contiguous)


def _address(array: npt.NDArray[np.generic]) -> int:
    return int(array.__array_interface__["data"][0])
