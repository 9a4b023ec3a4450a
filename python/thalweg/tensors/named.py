"""The named tensors of a task: ``Tensors`` at the sender, ``Received`` at the receiver.

The sender's head says which tensors are PyTorch tensors. The receiver gets these as PyTorch tensors and the others as
NumPy arrays. All tensors of a task lie in one arena at each side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from thalweg import _core
from thalweg.tensors.arena import Arena, describe_array, describe_tensor

if TYPE_CHECKING:
    import numpy.typing as npt

# NumPy arrays or PyTorch tensors by name. Each value is of the kind that the user gave or expects.
Named = Mapping[str, Any]
NOTHING: Final[Named] = MappingProxyType({})
_ids = count(1)


class Tensors(Mapping[str, "npt.NDArray[Any]"]):
    """Named tensors in one arena, to be sent. They are not sent again to a member that has them already.

    As a mapping it gives a read-only NumPy view of each tensor.
    """

    def __init__(self, tensors: Named) -> None:
        """Copy NumPy arrays or PyTorch tensors, such as a ``state_dict()``, into one arena.

        A tensor on an accelerator is copied from there. Raises ModelError for an element type that does not travel.
        """
        self.torch = frozenset(name for name, value in tensors.items() if _is_torch(value))
        described = [self._describe(name, value) for name, value in tensors.items()]
        self.arena = Arena(_core.Arena(_core.Layout(described)))
        self.id = next(_ids)
        for name, value in tensors.items():
            if name in self.torch:
                self.arena.tensor(name).copy_(value.detach())
            else:
                self.arena[name][...] = value

    @classmethod
    def of(cls, arena: Arena, torch: Iterable[str] = ()) -> Tensors:
        """Use an arena without a copy. From now on nobody may write to it.

        ``torch`` names the tensors that receivers get as PyTorch tensors.
        """
        made = cls.__new__(cls)
        made.arena, made.id, made.torch = arena, next(_ids), frozenset(torch)
        return made

    def _describe(self, name: str, value: Any) -> tuple[str, str, list[int]]:
        return describe_tensor(name, value) if name in self.torch else describe_array(name, value)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return _read_only(self.arena[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.arena)

    def __len__(self) -> int:
        return len(self.arena)


class Received(Named):
    """Received tensors by name: PyTorch tensors where the sender had them, else NumPy arrays.

    If PyTorch is not installed, all are NumPy arrays.
    """

    def __init__(self, arena: Arena, torch: Iterable[str], *, shared: bool) -> None:
        """Use the received arena. ``shared``: others use it too, so arrays are read-only and PyTorch tensors copies."""
        self.arena, self._shared = arena, shared
        #: The names of tensors that are PyTorch tensors at the sender.
        self.torch = frozenset(torch).intersection(arena)
        self._given: dict[str, object] = {}

    @property
    def untouched(self) -> bool:
        """Whether no copy was handed out, so that the arena still has the values that the user sees."""
        return not self._given

    def __getitem__(self, name: str) -> Any:
        if name in self.torch and _has_torch():
            if not self._shared:
                return self.arena.tensor(name)
            if name not in self._given:  # PyTorch has no read-only tensors
                self._given[name] = self.arena.tensor(name).clone()
            return self._given[name]
        return _read_only(self.arena[name]) if self._shared else self.arena[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arena)

    def __len__(self) -> int:
        return len(self.arena)


def _has_torch() -> bool:
    return find_spec("torch") is not None


def _is_torch(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch" or hasattr(value, "untyped_storage")


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array
