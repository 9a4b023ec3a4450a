"""Payloads: updates of a given size without training, for measurements.

``payload:SIZE`` has that many bytes, ``payload:NAME`` as many as an update of the network of that name, and
``payload:COUNTxSIZE`` is COUNT tensors of SIZE bytes each. ``payload:f64:`` before SIZE, NAME or COUNTxSIZE makes the
values float64 instead of float32, as FATE sends models, on which FedRDMA builds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from thalweg.errors import ModelError
from thalweg.ui.units import parse_size

PAYLOAD: Final = "payload:"
WIDE: Final = "f64:"
ELEMENT_BYTES: Final = {"F32": 4, "F64": 8}
# Alignment of a layout's tensors. Sizes are multiples of it, so that there are no gaps between tensors.
TENSOR_BYTES: Final = 64
MOST_TENSORS: Final = 100_000
SEVERAL: Final = re.compile(r"([0-9]+)x(.*)", re.ASCII)

Dtype = Literal["F32", "F64"]


@dataclass(frozen=True)
class PayloadSpec:
    """The tensors of a payload: the bytes of each, by name, and the type of all values."""

    tensors: dict[str, int]
    dtype: Dtype

    @property
    def bytes(self) -> int:
        """All bytes together."""
        return sum(self.tensors.values())


def parse(name: str, network_bytes: Callable[[str, Dtype], int | None]) -> PayloadSpec | None:
    """Return the payload called ``name``, or None if it is no payload.

    ``network_bytes`` returns the bytes of a network's update from its name and the values' type, or None if there is no
    such network. SIZE must be a positive multiple of a value's bytes, and of 64 if there are several tensors; COUNT is
    at most 100,000. Raises ModelError.
    """
    if not name.startswith(PAYLOAD):
        return None
    text = name.removeprefix(PAYLOAD)
    dtype: Dtype = "F64" if text.startswith(WIDE) else "F32"
    text = text.removeprefix(WIDE)
    several = SEVERAL.fullmatch(text)
    count, size = (_count(name, several[1]), several[2]) if several else (None, text)
    network = network_bytes(size, dtype) if count is None else None
    if network is not None:
        return PayloadSpec({"payload": network}, dtype)
    multiple = ELEMENT_BYTES[dtype] if count is None else TENSOR_BYTES
    hint = f"Give a positive multiple of {multiple} bytes, with a unit of B kB MB GB KiB MiB GiB, as payload:8MiB"
    hint += ", or a network" if count is None else ""
    try:
        each = parse_size(size)
    except ValueError as error:
        raise ModelError(f"the payload {name!r} has no size: {error}", hint) from error
    if each == 0 or each % multiple:
        raise ModelError(f"the payload {name!r} is {each} bytes, not a positive multiple of {multiple}", hint)
    tensors = {"payload": each} if count is None else {f"payload.{place}": each for place in range(count)}
    return PayloadSpec(tensors, dtype)


def _count(name: str, digits: str) -> int:
    """Return how many tensors a payload has. Raises ModelError."""
    # Check the length first: int() of very many digits is slow.
    count = int(digits) if len(digits) <= len(str(MOST_TENSORS)) else MOST_TENSORS + 1
    if not 1 <= count <= MOST_TENSORS:
        raise ModelError(
            f"the payload {name[:40]!r} has no such number of tensors",
            f"Give 1 to {MOST_TENSORS} of them, as payload:100x64KiB",
        )
    return count
