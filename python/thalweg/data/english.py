"""English prose that ships with Python: the texts behind ``help("topics")``, its language reference (PSF-2.0).

About half a megabyte; each release of Python has its own edition, so parties should use the same one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from thalweg.data.dataset import Labels, stratified_split
from thalweg.data.text import Text, TextSplit
from thalweg.errors import DataError

# Bytes that a sample predicts from; one more is read, the last to be predicted.
WINDOW: Final = 64
# Topics in the order of their names are dealt into so many runs of about equal length: the label of a sample.
GROUPS: Final = 10
TEST_FRACTION: Final = 0.2
SPLIT_SEED: Final = 0


def load(root: Path | None) -> TextSplit:
    """Return (train, test): a fixed fifth of each group's windows is the test part. ``root`` is not used."""
    tokens, labels = _windows(_topics())
    whole = Text("english", tokens, labels, GROUPS)
    train, test = stratified_split(labels, TEST_FRACTION, SPLIT_SEED)
    return whole.subset(train), whole.subset(test)


def _topics() -> dict[str, str]:
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        hint = "Use a Python with its whole standard library; some systems have it in a package of its own"
        raise DataError(f"this Python has no texts of help(): {error}", hint) from error
    return topics


def _windows(topics: dict[str, str]) -> tuple[NDArray[np.uint8], Labels]:
    """Cut each topic into windows that overlap by a byte; what is left at its end is dropped."""
    texts = [np.frombuffer(topics[name].encode(), dtype=np.uint8) for name in sorted(topics)]
    cuts = [sliding_window_view(text, WINDOW + 1)[::WINDOW] for text in texts if len(text) > WINDOW]
    counts = np.array([len(cut) for cut in cuts])
    # A topic belongs to the group in which its middle lies.
    middles = counts.cumsum() - counts / 2
    labels = np.repeat((middles * GROUPS / counts.sum()).astype(np.int64), counts)
    return np.concatenate(cuts), labels
