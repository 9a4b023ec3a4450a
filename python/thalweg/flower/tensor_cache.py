"""Keeps the tensors that were sent last, so that equal ones are not copied or sent again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from thalweg.flower.records import Packed
from thalweg.tasks import Tensors


class TensorCache:
    """Returns the same ``Tensors`` for the same arrays, so that they are neither copied again nor sent again."""

    def __init__(self) -> None:
        self._sources: list[Any] = []
        self._tensors: Tensors | None = None
        self._lock = threading.Lock()

    def tensors(self, packed: Packed) -> Tensors | None:
        """Return the tensors of a message; None if it has none.

        If its arrays lie in a ``Tensors`` already, that is returned; if they equal the tensors that were sent last,
        those are; else the arrays are copied into a new one.
        """
        if not packed.body:
            return None
        home = _home(packed.sources)
        if home is not None:
            self.clear()
            return home
        with self._lock:
            if self._tensors is None or not _same(self._sources, packed.sources) or not _alike(self._tensors, packed):
                self._sources, self._tensors = [], None  # free the old tensors before the new ones are made
                self._tensors = Tensors(packed.tensors())
                self._sources = packed.sources
            return self._tensors

    def clear(self) -> None:
        """Forget the tensors that were sent last."""
        with self._lock:
            self._sources, self._tensors = [], None


def _home(sources: Sequence[Any]) -> Tensors | None:
    """Return the ``Tensors`` in which all arrays lie already, if it has just these in this order; else None."""
    first = sources[0][0] if isinstance(sources[0], tuple) else None
    if not isinstance(first, Tensors) or len(first) != len(sources):
        return None
    there = all(isinstance(one, tuple) and one[0] is first and one[1] == str(at) for at, one in enumerate(sources))
    return first if there else None


def _same(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Return whether two lists of sources name the same objects, by identity. These objects are never changed."""
    return len(ours) == len(theirs) and all(map(_same_one, ours, theirs))


def _same_one(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, tuple) and isinstance(theirs, tuple):
        return ours[0] is theirs[0] and ours[1] == theirs[1]
    return ours is not None and ours is theirs


def _alike(tensors: Tensors, packed: Packed) -> bool:
    """Return whether tensors have the element types and shapes of a packed message's body."""
    pairs = zip(tensors.values(), packed.body, strict=True)
    return all(one.dtype == other.dtype and one.shape == other.shape for one, other in pairs)
