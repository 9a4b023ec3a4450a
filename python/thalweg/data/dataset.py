"""Labelled images in memory. Every data set is converted to images of 3 channels and 32x32 pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from thalweg.errors import DataError

CHANNELS: Final = 3
SIDE: Final = 32

Images: TypeAlias = NDArray[np.uint8]
Labels: TypeAlias = NDArray[np.int64]
Rgb: TypeAlias = tuple[float, float, float]


@dataclass(frozen=True)
class Dataset:
    """Images with labels.

    ``images``: uint8, shape (n, 3, 32, 32), 0..255; may be a read-only view. ``labels``: int64, shape (n,), in
    0..classes-1. ``mean`` and ``std`` of each channel, on the scale 0..1, are for normalisation. With ``augment``,
    training crops images at random. With ``flip`` it also mirrors them, which is right if a mirrored image keeps its
    label. Raises DataError if sizes or labels do not agree.
    """

    name: str
    images: Images
    labels: Labels
    classes: int
    mean: Rgb
    std: Rgb
    augment: bool
    flip: bool

    def __post_init__(self) -> None:
        expected = (len(self.labels), CHANNELS, SIDE, SIDE)
        if self.images.shape != expected or self.images.dtype != np.uint8 or self.labels.dtype != np.int64:
            actual = f"images {self.images.shape} {self.images.dtype}, labels {self.labels.shape} {self.labels.dtype}"
            raise DataError(
                f"{self.name} has {actual}", f"Give images {expected} uint8 and labels ({expected[0]},) int64"
            )
        if len(self.labels) and not (self.labels.min() >= 0 and self.labels.max() < self.classes):
            raise DataError(
                f"{self.name} has labels {self.labels.min()}..{self.labels.max()}",
                f"Labels must be 0..{self.classes - 1}",
            )

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: Labels) -> Dataset:
        """Return a copy of the samples at ``indices`` (int64, any order)."""
        return replace(self, images=self.images[indices], labels=self.labels[indices])


Split: TypeAlias = tuple[Dataset, Dataset]


def pad_grey(images: Images) -> Images:
    """Centre grey images (n, height, width), at most 32x32, on black, and repeat them in three equal channels.

    Returns a read-only view of shape (n, 3, 32, 32): the three channels share their bytes.
    """
    count, height, width = images.shape
    top, left = (SIDE - height) // 2, (SIDE - width) // 2
    canvas = np.zeros((count, 1, SIDE, SIDE), dtype=np.uint8)
    canvas[:, 0, top : top + height, left : left + width] = images
    return np.broadcast_to(canvas, (count, CHANNELS, SIDE, SIDE))


def stratified_split(labels: Labels, test_fraction: float, seed: int) -> tuple[Labels, Labels]:
    """Return shuffled indices (train, test) with the same fraction of each class in the test part.

    Each class gives ``round(test_fraction * its size)`` samples to the test part. Deterministic for a seed.
    """
    generator = np.random.default_rng(seed)
    in_test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        in_test[members[: round(test_fraction * len(members))]] = True
    train = generator.permutation(np.flatnonzero(~in_test))
    test = generator.permutation(np.flatnonzero(in_test))
    return train.astype(np.int64), test.astype(np.int64)


def drawn(count: int, wanted: int, seed: int, *, key: str = "data.samples") -> Labels:
    """Return ``wanted`` of the indices 0..count-1 (int64), drawn by ``seed``, in their order.

    Raises DataError that names the plan's ``key``.
    """
    if wanted > count:
        raise DataError(f"{wanted} samples are wanted of {count}", f"Make {key} at most {count}")
    order = np.random.default_rng((seed, count)).permutation(count)
    return np.sort(order[:wanted]).astype(np.int64)
