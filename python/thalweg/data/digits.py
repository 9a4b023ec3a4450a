"""Handwritten digits of 8x8 pixels that ship inside scikit-learn: 1,797 images, enlarged to 32x32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from thalweg.data.dataset import SIDE, Dataset, Split, pad_grey, stratified_split
from thalweg.data.files import read_packaged_table

ROWS: Final = 1797
SMALL_SIDE: Final = 8
BRIGHTEST: Final = 16
TEST_FRACTION: Final = 0.2
SPLIT_SEED: Final = 0
MEAN: Final = 0.3053
STD: Final = 0.3760


def load(root: Path | None) -> Split:
    """Return (train, test). A fixed fifth of each class is for the test. ``root`` is not used."""
    table = read_packaged_table("sklearn", "datasets/data/digits.csv.gz", SMALL_SIDE**2 + 1, ROWS, limit=1 << 20)
    small = table[:, :-1].reshape(-1, SMALL_SIDE, SMALL_SIDE).clip(0, BRIGHTEST) * 255 // BRIGHTEST
    times = SIDE // SMALL_SIDE
    images = pad_grey(small.astype(np.uint8).repeat(times, axis=1).repeat(times, axis=2))
    labels = table[:, -1].astype(np.int64)
    whole = Dataset("digits", images, labels, 10, (MEAN,) * 3, (STD,) * 3, augment=True, flip=False)
    train, test = stratified_split(labels, TEST_FRACTION, SPLIT_SEED)
    return whole.subset(train), replace(whole.subset(test), augment=False)
