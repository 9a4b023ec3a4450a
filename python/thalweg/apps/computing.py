"""Simulates a client's computation on a payload: it takes a given time in each round."""

from __future__ import annotations

import hashlib
import time
from typing import Final

from thalweg.errors import PlanError
from thalweg.wire import Table

# The keys of [training] that set the computation.
KEYS: Final = frozenset({"compute", "compute_load"})
LONGEST: Final = 1e6
_BLOCK: Final = bytes(1 << 16)


def compute(settings: Table) -> None:
    """Compute as the table from the server says.

    Either sleep for ``compute`` seconds, or, with ``compute_load`` cpu, keep this thread busy for that much CPU time.
    Raises PlanError if the table is invalid.
    """
    seconds, load = settings.get("compute"), settings.get("compute_load", "none")
    is_load = load in ("none", "cpu")
    if not is_load or not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 <= seconds <= LONGEST:
        raise PlanError(
            f"the server says compute = {seconds!r}, compute_load = {load!r}", "Use the same version on both sides"
        )
    if load == "none":
        time.sleep(seconds)
        return
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        hashlib.sha256(_BLOCK)
