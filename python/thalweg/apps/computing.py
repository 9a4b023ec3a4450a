"""Simulates a client's computation on a payload: it takes a given time in each round."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Any, Final

from thalweg.errors import PlanError

# The keys of [training] that set the computation.
KEYS: Final = frozenset({"compute", "compute_load"})
LONGEST: Final = 1e6
_BLOCK: Final = bytes(1 << 16)


def compute(asked: Mapping[str, Any]) -> None:
    """Compute as the table from the server says.

    Either sleep for ``compute`` seconds, or, with ``compute_load`` cpu, keep this thread busy for that much CPU time.
    Raises PlanError if the table is invalid.
    """
    seconds: Any = asked.get("compute")
    load = asked.get("compute_load", "none")
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= LONGEST or load not in ("none", "cpu"):
        raise PlanError(
            f"the server says compute = {seconds!r}, compute_load = {load!r}", "Use the same version on both sides"
        )
    if load == "none":
        time.sleep(seconds)
        return
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        hashlib.sha256(_BLOCK)
