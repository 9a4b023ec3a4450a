"""Text in memory, as windows of tokens. A model predicts each token of a window from those before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from thalweg.data.dataset import Labels
from thalweg.errors import DataError


@dataclass(frozen=True)
class Text:
    """Windows of text.

    ``tokens``: uint8, shape (n, window + 1). ``labels``: int64, shape (n,), in 0..classes-1: the group of each window,
    by which partitions assign windows to clients. Raises DataError if sizes or labels do not agree.
    """

    name: str
    tokens: NDArray[np.uint8]
    labels: Labels
    classes: int

    def __post_init__(self) -> None:
        shape, count = self.tokens.shape, len(self.labels)
        if len(shape) != 2 or shape[0] != count or shape[1] < 2 or self.tokens.dtype != np.uint8:
            raise DataError(f"{self.name} has tokens {shape} {self.tokens.dtype}", f"Give ({count}, 2 or more) uint8")
        if count and not (self.labels.min() >= 0 and self.labels.max() < self.classes):
            actual = f"{self.labels.min()}..{self.labels.max()}"
            raise DataError(f"{self.name} has labels {actual}", f"Labels must be 0..{self.classes - 1}")

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: Labels) -> Text:
        """Return a copy of the windows at ``indices`` (int64, any order)."""
        return replace(self, tokens=self.tokens[indices], labels=self.labels[indices])


TextSplit: TypeAlias = tuple[Text, Text]
