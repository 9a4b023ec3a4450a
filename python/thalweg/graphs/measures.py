"""Measures what mixing does to the models of all nodes. It uses a small sketch of each model, so that no model is sent.

The sketch is a count sketch (Charikar, Chen and Farach-Colton 2002): value i, times a random sign, is added to entry i
mod 64. It is linear, so the sketch of a mean is the mean of the sketches. The expectation of its squared norm is the
model's squared norm; with 64 entries the norm has an error of about a tenth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PLACES: Final = 64
# Number of values sketched at a time. It limits the memory for signs and products.
BLOCK: Final = 1 << 16
# Element types whose values count: integers, such as counters, are not averaged.
FLOATS: Final = ("F64", "F32", "F16")


def sketch(parts: Iterable[NDArray[Any]], seed: int) -> NDArray[np.float64]:
    """Return the sketch of a model's values: shape (64,), float64.

    ``parts`` are its arrays of floats of any shape, in an order that all nodes have. ``seed`` decides the signs.
    """
    import numpy as np

    signs = np.random.Generator(np.random.PCG64(seed))
    places = np.zeros(PLACES)
    for part in parts:
        values = part.reshape(-1)
        for start in range(0, values.size, BLOCK):
            places += _block(values[start : start + BLOCK], signs.bytes(BLOCK // 8))
    return places


def floats(tensors: Mapping[str, NDArray[Any]], kinds: Mapping[str, str]) -> list[NDArray[Any]]:
    """Return those of ``tensors`` that are floats; ``kinds`` has each one's element type, as F32."""
    return [array for name, array in tensors.items() if kinds[name] in FLOATS]


def drift(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
    """Return by how much mixing moved the mean of all models, as a fraction of that mean's norm.

    Both arrays have shape (nodes, k): models, or their sketches. If each column of the weights sums to 1, only rounding
    moves the mean.
    """
    import numpy as np

    mean = before.mean(axis=0)
    return _share(float(np.linalg.norm(after.mean(axis=0) - mean)), float(np.linalg.norm(mean)))


def disagreement(models: NDArray[np.float64]) -> float:
    """Return the root mean square distance of the models from their mean, as a fraction of that mean's norm.

    ``models`` have shape (nodes, k): models, or their sketches.
    """
    import numpy as np

    mean = models.mean(axis=0)
    squares = np.square(models - mean).sum(axis=1)
    return _share(float(np.sqrt(squares.mean())), float(np.linalg.norm(mean)))


def _block(values: NDArray[Any], random: bytes) -> NDArray[np.float64]:
    import numpy as np

    bits = np.unpackbits(np.frombuffer(random, dtype=np.uint8), count=values.size)
    signed = np.zeros(-(-values.size // PLACES) * PLACES)
    np.multiply(values, 1.0 - 2.0 * bits, out=signed[: values.size])
    return np.asarray(signed.reshape(-1, PLACES).sum(axis=0))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0 if not part else float("inf")
