"""English prose that ships with Python: the texts behind ``help("topics")``, its language reference (PSF-2.0).

It has about half a megabyte. The text differs between releases of Python, so all parties should run the same release.
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

# Input bytes of a sample. A window has one more byte, the last target.
WINDOW: Final = 64
# The topics, sorted by name, are split into this many groups of about equal length. A sample's label is its group.
GROUPS: Final = 10
TEST_FRACTION: Final = 0.2
SPLIT_SEED: Final = 0


def load(root: Path | None) -> TextSplit:
    """Return (train, test). A fixed fifth of each group's windows is for the test. ``root`` is not used."""
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
    """Cut each topic into windows that overlap by one byte, and drop the incomplete last one."""
    texts = [np.frombuffer(topics[name].encode(), dtype=np.uint8) for name in sorted(topics)]
    cuts = [sliding_window_view(text, WINDOW + 1)[::WINDOW] for text in texts if len(text) > WINDOW]
    counts = np.array([len(cut) for cut in cuts])
    # A topic belongs to the group that contains its middle.
    middles = counts.cumsum() - counts / 2
    labels = np.repeat((middles * GROUPS / counts.sum()).astype(np.int64), counts)
    return np.concatenate(cuts), labels
