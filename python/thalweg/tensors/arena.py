"""The arena in Python: a model's tensors as NumPy or PyTorch views of the buffer that is sent and received."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from thalweg import _core, extras
from thalweg.errors import ModelError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

# The element types that travel: the name in PyTorch and NumPy -> the name in safetensors.
_TYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
# Types that the package ml_dtypes adds to NumPy.
_NARROW = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
#: NumPy's own names of the element types that travel, without the types of ml_dtypes.
ARRAY_TYPES = frozenset(_TYPES).difference(_NARROW)


class Arena(Mapping[str, "npt.NDArray[Any]"]):
    """A model in one page-aligned buffer. As a mapping it gives a NumPy view of each tensor by its name.

    bfloat16 and float8 tensors have the array types that the package ml_dtypes adds to NumPy.
    Models and updates are sent from this buffer and received into it. Change the values only between ``Client.next``
    and ``Client.submit``: at other times a transfer may be reading or writing them.
    """

    def __init__(self, core: _core.Arena) -> None:
        self.core = core
        self._places = {name: (dtype, shape, offset) for name, dtype, shape, offset in core.layout.tensors}

    @classmethod
    def bind(
        cls, model: torch.nn.Module | Mapping[str, npt.NDArray[Any]], tensors: str | Iterable[str] | None = None
    ) -> Arena:
        """Move a model's values into an arena and make its tensors views of it.

        For a module, every parameter and persistent buffer is moved (BatchNorm's statistics too), a tied tensor once.
        The module keeps working, and optimisers keep their references. For a dict of arrays, values are copied, and
        ``arena[name]`` are the views to use. ``tensors`` says which tensors travel (docs/how-to/own-model.md); the
        others stay as they are. Raises ModelError for tensors on another device than the CPU, or of an element type
        that does not travel.
        """
        from thalweg.tensors.binding import bind

        bound = bind(model, tensors)
        if bound.devices:
            raise ModelError(
                f"the model is on {', '.join(bound.devices)}, where its tensors cannot be views of an arena",
                "Bind it on the CPU: model.cpu(). Server, Client and Node take it as it is",
            )
        return bound.arena

    @property
    def layout(self) -> _core.Layout:
        """Name, dtype, shape and byte offset of each tensor."""
        return self.core.layout

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        dtype, shape, _ = self._places[name]
        return self._bytes(name).view(_array_type(dtype)).reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def _bytes(self, name: str) -> npt.NDArray[np.uint8]:
        import numpy as np

        dtype, shape, offset = self._places[name]
        size = int(np.prod(shape, dtype=np.int64)) * _array_type(dtype).itemsize
        return np.asarray(self.core)[offset : offset + size]

    def tensor(self, name: str) -> torch.Tensor:
        """Return the tensor ``name`` as a PyTorch view of the arena's memory."""
        import torch

        dtype, shape, _ = self._places[name]
        return torch.from_numpy(self._bytes(name)).view(getattr(torch, _NAMES[dtype])).view(shape)


def layout_of(module: torch.nn.Module, tensors: str | Iterable[str] | None = None) -> _core.Layout:
    """Return the layout of a module's parameters and persistent buffers, in ``state_dict`` order. Raises ModelError.

    ``tensors`` says which of them travel.
    """
    from thalweg.tensors.choosing import Choice
    from thalweg.tensors.travelling import chosen

    return chosen(module, Choice(tensors)).layout


def describe_tensor(name: str, tensor: torch.Tensor) -> tuple[str, str, list[int]]:
    """Return a tensor's name, element type and shape for a layout. Raises ModelError if it cannot lie in an arena."""
    import torch

    from thalweg.tensors.travelling import address_of

    if torch.nn.parameter.is_lazy(tensor):
        raise ModelError(f"tensor {name!r} has no shape yet", "Run a batch through the model in model()")
    if tensor.is_meta:
        raise ModelError(
            f"tensor {name!r} is on meta, where it has no values", "Make the model on a device with memory"
        )
    if tensor.layout != torch.strided:
        raise ModelError(f"tensor {name!r} has the layout {tensor.layout}", "Make it dense: tensor.to_dense()")
    if tensor.numel() and address_of(tensor) is None:
        raise ModelError(
            f"tensor {name!r} is a {type(tensor).__name__}, whose values are not one block of memory",
            "Make it a plain tensor, or keep it at home: tensors = '!NAME'",
        )
    return name, _dtype(name, str(tensor.dtype).removeprefix("torch.")), list(tensor.shape)


def describe_array(name: str, array: object) -> tuple[str, str, list[int]]:
    """Return an array's name, element type and shape for a layout. Raises ModelError.

    An array may have either byte order: copying it into an arena converts the values.
    """
    import numpy as np

    if not isinstance(array, (np.ndarray, np.generic)):
        raise ModelError(f"{name!r} is a {type(array).__name__}", "Make it an array: numpy.array(...)")
    return name, _dtype(name, array.dtype.name), list(array.shape)


def _dtype(name: str, dtype: str) -> str:
    if dtype not in _TYPES:
        raise ModelError(f"tensor {name!r} has elements of type {dtype}", f"Use one of {', '.join(_TYPES)}")
    return _TYPES[dtype]


def _array_type(dtype: str) -> np.dtype[Any]:
    """Return NumPy's dtype for an element type of a layout."""
    import numpy as np

    name = _NAMES[dtype]
    if name in _NARROW:
        extras.require(f"a tensor of type {dtype} in NumPy", "ml_dtypes")
        import ml_dtypes  # noqa: F401 - adds the names to NumPy's
    return np.dtype(name)
