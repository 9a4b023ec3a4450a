"""Binds a model to an arena, so that the trained values are what is sent.

Only the arena's memory is sent. Training code can silently move a tensor out of it: by ``p.data = ...``,
``module.to(...)``, ``load_state_dict(assign=True)``, a new ``nn.Parameter`` or another submodule. So each tensor is
checked before training and before sending. If a tensor has moved, its values are copied back, and the model uses the
arena again. A tensor that is missing, is new, or has another shape or element type is an error. The check reads no
values. It is short while a model has the modules and tensors that it had before (``thalweg.tensors.seen``).

A tensor that is on an accelerator when the model is bound stays there. Its values are copied to the arena after
training and back before it (``thalweg.tensors.device``).
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from thalweg import _core
from thalweg.errors import ModelError
from thalweg.tensors.arena import Arena, describe_array
from thalweg.tensors.choosing import Choice, Named
from thalweg.tensors.device import DeviceCopies
from thalweg.tensors.seen import Seen
from thalweg.tensors.travelling import Group, Slot, address_of, chosen, memory_of, refuse_overlaps, slots
from thalweg.ui.phrases import listed
from thalweg.ui.units import format_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

# Arrays by name, as a user gives them.
Arrays: TypeAlias = Mapping[str, object]
Model: TypeAlias = "torch.nn.Module | Mapping[str, object]"
Words: TypeAlias = "str | Iterable[str] | None"

IN_PLACE: Final = (
    "Train the tensors of the model that train() is given, in place; make changes of its structure in model()"
)
SAMPLES: Final = 1024
SAMPLE_BYTES: Final = 64


class Binding(ABC):
    """A model whose chosen tensors lie in an arena. The app gets ``model``."""

    model: Any
    arena: Arena
    #: Whether a tensor that training may change does not travel, so that the parties' models differ.
    personal: bool
    #: Names of the floating-point tensors that travel and that training changes by gradients.
    trained: Sequence[str]
    _choice: Choice
    # Number of all tensors of the model, travelling or not. Tied tensors count once.
    _total: int
    # Chosen entries of the model's state_dict() that cannot travel, until ``unreported`` has returned them.
    _staying: Sequence[str] = ()
    #: Names of the accelerators on which tensors of the model stay.
    devices: Sequence[str] = ()
    #: The copies between these accelerators and the arena; None if all tensors lie in the arena.
    copies: DeviceCopies | None = None
    # Whether ``unpinned`` has returned its reason.
    _reported_unpinned = False

    def collect(self, when: str) -> list[str]:
        """Copy the values of tensors that have moved from the model into the arena; return these tensors' names.

        Values on an accelerator are copied too. ``when`` says in errors what has just happened, such as "train()".
        Raises ModelError before it changes anything.
        """
        return self._settle(when, from_model=True)

    def restore(self, when: str, *, wait: bool = True) -> list[str]:
        """Make the model use the arena's values again for tensors that have moved; return their names.

        Values are copied to tensors on an accelerator. Without ``wait`` these copies may still run at the return: work
        on the device's current stream comes after them, and the arena must not change before ``collect`` or another
        ``restore``. Raises ModelError.
        """
        return self._settle(when, from_model=False, wait=wait)

    def sample(self) -> bytes:
        """Return a sample of the arena's bytes, spread over all of it. Training is expected to change some of them."""
        import numpy as np

        content = np.asarray(self.arena.core)
        blocks = content[: content.size // SAMPLE_BYTES * SAMPLE_BYTES].reshape(-1, SAMPLE_BYTES)
        return blocks[:: max(1, len(blocks) // SAMPLES)].tobytes() or content.tobytes()

    def unreported(self) -> Sequence[str]:
        """Return the chosen entries of the model's ``state_dict()`` that cannot travel. Later calls return none."""
        staying, self._staying = self._staying, ()
        return staying

    def unpinned(self) -> str | None:
        """Return why the arena of a model on accelerators is not pinned; None if it is. Later calls return None."""
        if self._reported_unpinned or self.copies is None:
            return None
        self._reported_unpinned = True
        return self.copies.unpinned

    def summary(self) -> str:
        """Return a line about the tensors that travel: how many, how large, and on which accelerators they are."""
        count, size = len(self.arena), format_bytes(len(self.arena.core))
        few = "" if self._choice.is_all else f" of {self._total}, as tensors = {self._choice} says"
        where = f", on {', '.join(self.devices)}" if self.devices else ""
        return f"tensors in an update: {count}{few}, {size}{where}"

    @abstractmethod
    def _settle(self, when: str, *, from_model: bool, wait: bool = True) -> list[str]:
        """Make all chosen tensors views of the arena again; return the names of those that had moved.

        ``from_model``: the model's values are copied into the arena first; else the arena's values win. Tensors on an
        accelerator stay there, and their values are copied. ``wait`` as in ``restore``.
        """


def bind(model: Model, tensors: Words = None, *, shared: bool = False, beside: str = "") -> Binding:
    """Move a model's values into a new arena. Raises ModelError.

    A module's parameters and persistent buffers become views of the arena, a tied tensor once; optimisers keep their
    references. For a mapping of NumPy arrays ``binding.model`` is a new dict with views. ``tensors`` says which tensors
    travel. ``shared`` makes a shared arena: peers on this machine map it instead of copying, where the transport can.
    With ``beside`` the arena of a module has a second tensor for each trained one, of 0, whose name begins with it.
    """
    binding = _binding(model, Choice(tensors), None, shared=shared, beside=beside)
    binding.collect("binding the model")
    return binding


def attach(model: Model, core: _core.Arena, tensors: Words = None, *, beside: str = "") -> Binding:
    """Bind a model to an existing arena, whose values replace the model's. Raises ModelError if the layouts differ.

    ``beside`` as in ``bind``.
    """
    binding = _binding(model, Choice(tensors), core, shared=False, beside=beside)
    binding.restore("binding the model")
    return binding


def _binding(model: Any, choice: Choice, core: _core.Arena | None, *, shared: bool, beside: str = "") -> Binding:
    if isinstance(model, Mapping):
        return _not_empty(ArrayBinding(model, choice, core, shared=shared))
    if not callable(getattr(model, "named_modules", None)):
        raise ModelError(
            f"the model is a {type(model).__name__}", "Use a torch.nn.Module, or a dict of NumPy arrays by name"
        )
    return _not_empty(ModuleBinding(model, choice, core, shared=shared, beside=beside))


def _not_empty(binding: Binding) -> Binding:
    """Return the binding; raise ModelError if no tensor of its model travels."""
    if not len(binding.arena):
        staying = binding.unreported()
        cause = f"; its state_dict() has {listed(staying)}, which cannot travel" if staying else ""
        raise ModelError(f"the model has no tensor that travels{cause}", "Give it parameters, buffers or arrays")
    return binding


def check_layout(job: _core.Layout, own: _core.Layout) -> None:
    """Raise ModelError, which names the first difference, if a model's layout is not the job's."""
    difference = own.difference(job, "in this model", "in the job's")
    if difference is not None:
        raise ModelError(
            f"the model differs from the job's: {difference}",
            "Use the same model, and the same choice of tensors, at both ends",
        )


def _with_others(layout: _core.Layout, names: Sequence[str], beside: str) -> _core.Layout:
    """Return a layout with a second tensor for each of ``names``, of the same type and shape."""
    own = [(name, dtype, shape) for name, dtype, shape, _ in layout.tensors]
    return _core.Layout([*own, *((beside + name, dtype, shape) for name, dtype, shape in own if name in set(names))])


@dataclass(frozen=True)
class TensorPlace:
    """A tensor's place in the arena: its names, dtype, shape, and the address of its first byte.

    ``apart`` are names of other tensor objects over the same memory, as in ``travelling.Group``. A tensor with a
    ``device`` stays on that accelerator; the others are views of their places.
    """

    names: Sequence[str]
    apart: frozenset[str]
    dtype: torch.dtype
    shape: torch.Size
    address: int
    device: torch.device | None

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is a view of this memory, or on the place's device, with the same dtype and shape."""
        import torch

        if tensor.dtype != self.dtype or tensor.shape != self.shape:
            return False
        if self.device is not None:
            values = not tensor.numel() or address_of(tensor) is not None
            return tensor.device == self.device and tensor.layout == torch.strided and values
        return not tensor.numel() or (address_of(tensor) == self.address and tensor.is_contiguous())


class ModuleBinding(Binding):
    """A PyTorch module whose chosen tensors lie in an arena."""

    def __init__(
        self,
        module: torch.nn.Module,
        choice: Choice,
        core: _core.Arena | None = None,
        *,
        shared: bool = False,
        beside: str = "",
    ) -> None:
        """Give each tensor that travels a place in the arena. ``collect`` or ``restore`` makes the module use it."""
        selection = chosen(module, choice)
        self.trained = [
            group.names[0] for group in selection.groups if group.trainable and group.tensor.is_floating_point()
        ]
        layout = _with_others(selection.layout, self.trained, beside) if beside else selection.layout
        if core is not None:
            check_layout(core.layout, layout)
        self.model = module
        self.arena = Arena(_core.Arena(layout, shared=shared) if core is None else core)
        self._choice = choice
        self._known, self._total, self._staying = selection.known, selection.total, selection.staying
        self.personal = selection.personal
        self._places = [self._place(group) for group in selection.groups]
        devices = {place.device for place in self._places if place.device is not None}
        # The tensors on accelerators: the view of each one's place by name, and a weak reference to each.
        self._away = {
            place.names[0]: self.arena.tensor(place.names[0]) for place in self._places if place.device is not None
        }
        self._on_device: Mapping[str, Callable[[], torch.Tensor | None]] = {}
        # The model as a check has found it in which no tensor had moved.
        self._seen: Seen | None = None
        if devices:
            self.devices = sorted(map(str, devices))
            self.copies = DeviceCopies(self.arena.core, devices)

    def _place(self, group: Group) -> TensorPlace:
        view = self.arena.tensor(group.names[0])
        device = None if group.tensor.device.type == "cpu" else group.tensor.device
        return TensorPlace(group.names, frozenset(group.apart), view.dtype, view.shape, view.data_ptr(), device)

    def _settle(self, when: str, *, from_model: bool, wait: bool = True) -> list[str]:
        if self.copies is not None:
            self.copies.wait()
        moved = [] if self._seen is not None and self._seen.stands() else self._look(when, from_model=from_model)
        if self.copies is not None:
            # The model has each of these tensors, as the check has just found.
            pairs = {name: (cast("torch.Tensor", self._on_device[name]()), view) for name, view in self._away.items()}
            if not from_model:
                self.copies.load(pairs.values(), wait=wait)
            else:
                # The arena has the values of a tensor that has moved, and the tensor's new memory has not.
                new = [pairs.pop(name) for name in moved if name in pairs]
                self.copies.store(pairs.values())
                if new:
                    self.copies.load(new, wait=True)
        return moved

    def _look(self, when: str, *, from_model: bool) -> list[str]:
        """Check all tensors, move those back that have moved, and return their names."""
        self._seen = None
        present = slots(self.model)
        moved = self._bring_back(present, when, from_model=from_model)
        # A new tensor stays at home as long as it is not trainable, if the choice says so: then each check looks again.
        if not moved and present.keys() <= self._known:
            self._seen = Seen(self.model, (present[name] for place in self._places for name in place.names))
        elif self._away:
            present = slots(self.model)
        self._on_device = {name: weakref.ref(present[name].tensor) for name in self._away}
        return moved

    def _bring_back(self, present: Mapping[str, Slot], when: str, *, from_model: bool) -> list[str]:
        """Move tensors that have moved to their places, or to new memory on their devices; return their names."""
        import torch

        moved = [place for place in self._places if not _is_settled(place, present)]
        if moved:
            self._check(moved, present, when)
        self._check_new(present, when)
        if not moved:
            return []
        with torch.no_grad():
            # Views are made anew each time: share_memory_() moves the memory under a tensor and under all its views.
            views = [self.arena.tensor(place.names[0]) for place in moved]
            if from_model:
                self._check_ties(moved, present, when)
                self._copy([present[place.names[0]].tensor.detach() for place in moved], views)
            for place, view in zip(moved, views, strict=True):
                home = view if place.device is None else torch.empty_like(view, device=place.device)
                _use(place, present, home)
        return [place.names[0] for place in moved]

    def _check(self, moved: Iterable[TensorPlace], present: Mapping[str, Slot], when: str) -> None:
        """Raise ModelError if a moved tensor is missing, has another kind, or has become the same object as another."""
        for place in moved:
            for name in place.names:
                if name not in present:
                    raise ModelError(f"after {when} the model has no tensor {name!r} any more", IN_PLACE)
                _check_kind(name, present[name].tensor, place, when)
        firsts: dict[int, str] = {}
        for place in self._places:
            name = place.names[0]
            first = firsts.setdefault(id(present[name].tensor), name)
            if first != name:
                raise ModelError(f"after {when} the tensors {first!r} and {name!r} are one", IN_PLACE)

    def _check_new(self, present: Mapping[str, Slot], when: str) -> None:
        """Raise ModelError for new tensors that the choice would include."""
        for name in present.keys() - self._known:
            if self._choice.takes(Named([name], present[name].tensor.requires_grad)):
                raise ModelError(f"after {when} the model has a new tensor {name!r}", IN_PLACE)

    def _check_ties(self, moved: Iterable[TensorPlace], present: Mapping[str, Slot], when: str) -> None:
        """Raise ModelError if formerly tied tensors now have different values, since only one of them can travel."""
        for place in moved:
            first, *others = place.names
            for other in others:
                if not _same(present[first].tensor, present[other].tensor):
                    raise ModelError(
                        f"after {when} the tensors {first!r} and {other!r}, which were tied, have different values",
                        "Keep them tied, or make them two tensors in model()",
                    )

    def _copy(self, sources: Sequence[torch.Tensor], views: Sequence[torch.Tensor]) -> None:
        """Copy values into their places. A source inside the arena is cloned first, since another may overwrite it.

        That happens when an app has swapped two tensors.
        """
        begin, end = self.arena.core.address, self.arena.core.address + len(self.arena.core)
        safe = [source.clone() if begin <= source.data_ptr() < end else source for source in sources]
        for view, source in zip(views, safe, strict=True):
            view.copy_(source)


def _is_settled(place: TensorPlace, present: Mapping[str, Slot]) -> bool:
    """Return whether the model has all names of a place, and each is a view of its memory or of one on its device."""
    slot = present.get(place.names[0])
    if slot is None or not place.holds(slot.tensor):
        return False
    for name in place.names[1:]:
        other = present.get(name)
        if other is None or not (_is_tied(place, slot, other) if name in place.apart else other.tensor is slot.tensor):
            return False
    return True


def _is_tied(place: TensorPlace, first: Slot, other: Slot) -> bool:
    """Return whether a tensor of a place has the memory of the place's first tensor, which is settled."""
    if place.device is None or not first.tensor.numel():
        return place.holds(other.tensor)
    return memory_of(first.tensor) == memory_of(other.tensor)


def _check_kind(name: str, tensor: torch.Tensor, place: TensorPlace, when: str) -> None:
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
    """Return whether two tensors are the same memory, or have equal bytes."""
    import torch

    if one is other or (one.device == other.device and one.data_ptr() == other.data_ptr()):
        return True
    one, other = (t.detach().to(one.device).contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(one, other)


def _use(place: TensorPlace, present: Mapping[str, Slot], view: torch.Tensor) -> None:
    """Make the model use a view of the arena, or memory on a device, under all names of a place."""
    first = _point(present[place.names[0]], view)
    for name in place.names[1:]:
        if name in place.apart:
            _point(present[name], view)
        elif present[name].tensor is not first:
            setattr(present[name].owner, present[name].key, first)


def _point(slot: Slot, view: torch.Tensor) -> torch.Tensor:
    """Make the tensor in a slot a view of the arena and return it. It stays the same object if PyTorch allows that."""
    import torch

    tensor = slot.tensor
    if not tensor.is_inference():
        try:
            tensor.data = view
        except RuntimeError:  # PyTorch cannot give a tensor of this kind other memory
            pass
        else:
            return tensor
    fresh = view.detach()
    if isinstance(tensor, torch.nn.Parameter):
        fresh = torch.nn.Parameter(fresh, requires_grad=tensor.requires_grad)
    setattr(slot.owner, slot.key, fresh)
    return fresh


class ArrayBinding(Binding):
    """A dict of NumPy arrays. ``model`` is a new dict, whose chosen arrays are views of an arena."""

    def __init__(
        self, arrays: Arrays, choice: Choice, core: _core.Arena | None = None, *, shared: bool = False
    ) -> None:
        """Give each array that travels a place in the arena. ``collect`` copies them there."""
        travels = choice.of([Named([name], None) for name in arrays])
        self._names = [name for name, chosen in zip(arrays, travels, strict=True) if chosen]
        layout = _core.Layout([describe_array(name, arrays[name]) for name in self._names])
        if core is not None:
            check_layout(core.layout, layout)
        refuse_overlaps(_spans(arrays), set(self._names))
        self._choice, self._known, self._total = choice, set(arrays), len(arrays)
        self.personal = len(self._names) < len(arrays)
        self.arena = Arena(_core.Arena(layout, shared=shared) if core is None else core)
        self.trained = [name for name, kind, *_ in layout.tensors if kind.startswith(("F", "BF"))]
        self.model = dict(arrays)

    def _settle(self, when: str, *, from_model: bool, wait: bool = True) -> list[str]:
        import numpy as np

        present = {name: np.asarray(self.model[name]) for name in self._names if name in self.model}
        views = {name: self.arena[name] for name in self._names}
        self._check(present, views, when)
        moved = [name for name, view in views.items() if not _is_view(present[name], view)]
        if from_model:
            # All are copied out first, because an array may lie in the place of another.
            for name, values in [(name, present[name].copy()) for name in moved]:
                views[name][...] = values
        self.model.update({name: views[name] for name in moved})
        return moved

    def _check(self, present: Mapping[str, npt.NDArray[Any]], views: Mapping[str, npt.NDArray[Any]], when: str) -> None:
        for name, view in views.items():
            if name not in present:
                raise ModelError(f"after {when} the model has no array {name!r} any more", IN_PLACE)
            array = present[name]
            # Another byte order is allowed: copying into the arena converts it.
            if (array.dtype.newbyteorder("="), array.shape) != (view.dtype, view.shape):
                was, now = (f"{a.dtype}{list(a.shape)}" for a in (view, array))
                raise ModelError(f"after {when} the array {name!r} is {now}; it was {was}", IN_PLACE)
        for name in self.model.keys() - self._known:
            if self._choice.takes(Named([name], None)):
                raise ModelError(f"after {when} the model has a new array {name!r}", IN_PLACE)


def _spans(arrays: Arrays) -> Iterator[tuple[int, int, str]]:
    """Yield the memory of each array that is one block: address of the first byte, address after the last, name."""
    import numpy as np

    for name, array in arrays.items():
        if isinstance(array, np.ndarray) and array.size and array.flags.c_contiguous:
            yield _address(array), _address(array) + array.nbytes, name


def _is_view(array: npt.NDArray[Any], view: npt.NDArray[Any]) -> bool:
    same = _address(array) == _address(view) and array.dtype == view.dtype
    return not array.size or (same and array.flags.c_contiguous)


def _address(array: npt.NDArray[np.generic]) -> int:
    return int(array.__array_interface__["data"][0])
