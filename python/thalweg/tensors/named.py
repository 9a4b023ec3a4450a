"""The named tensors of a task: ``Tensors`` to send, ``Received`` at the other end.

The sender's head says which tensors are PyTorch's. The receiver gets those as PyTorch tensors and the others as NumPy
arrays. All tensors of one side lie in one buffer.
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

Named = Mapping[str, Any]
NOTHING: Final[Named] = MappingProxyType({})
_ids = count(1)


class Tensors(Mapping[str, "npt.NDArray[Any]"]):
    """Named tensors in one buffer, to be sent. A member that has them already gets no byte of them again.

    As a mapping it has read-only NumPy views of the tensors.
    """

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        """Copy NumPy arrays or PyTorch tensors, such as a ``state_dict()``, into one buffer.

        Raises ModelError for what has no element type that travels, or is on another device.
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
        """Take an arena as it is, without a copy; nobody may write to it from now on.

        ``torch`` names those of its tensors that receivers get as PyTorch's.
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
    """Tensors that came, by name: PyTorch tensors where the sender's were, and NumPy arrays else.

    Where PyTorch is not installed all are NumPy arrays.
    """

    def __init__(self, arena: Arena, torch: Iterable[str], *, shared: bool) -> None:
        """Take the arena that came. If others use it too (``shared``), arrays are read-only and tensors are copies."""
        self.arena, self._shared = arena, shared
        #: Which are PyTorch's, as the sender says.
        self.torch = frozenset(torch).intersection(arena)
        self._given: dict[str, Any] = {}

    @property
    def untouched(self) -> bool:
        """Whether no copy was handed out, so that the arena still has what the user sees."""
        return not self._given

    def __getitem__(self, name: str) -> Any:
        if name in self.torch and _has_torch():
            if not self._shared:
                return self.arena.tensor(name)
            if name not in self._given:  # PyTorch knows no read-only tensors
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
