"""Generated reports of the iterations of three nodes on a ring: every number in them is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from thalweg.graphs import measures
from thalweg.record.nodes import packed

NODES = ("node-1", "node-2", "node-3")
EXPECTED = 1000


def exchange(peer: str, *, received: int = EXPECTED, first: float | None = -0.1) -> dict[str, Any]:
    state = "whole" if received == EXPECTED else "part" if received else "nothing"
    return {
        "peer": peer, "weight": 0.25, "bytes": received, "expected": EXPECTED, "chunks": received // 100,
        "duplicates": 0, "corrupt": 0, "late_chunks": 0, "first_seconds": first,
        "last_seconds": None if first is None else first + 0.05, "newest": 1, "state": state,
    }  # fmt: skip


def line(
    number: int,
    node: str,
    *,
    train: float = 1.0,
    wait: float = 0.1,
    lost: Mapping[str, int] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    value: float = 1.0,
) -> dict[str, Any]:
    """Return a node's line. ``lost``: bytes of a neighbour that did not arrive; ``value``: that of all parameters."""
    exchanges = [exchange(peer, received=EXPECTED - (lost or {}).get(peer, 0)) for peer in NODES if peer != node]
    used = sum(one["bytes"] for one in exchanges)
    model = np.full(128, value)
    report = {
        "round": number, "next": number + 1, "skipped": 0, "wait": "deadline", "timed_out": bool(lost),
        "by_segments": False, "limit_seconds": 0.4, "heard": [one["peer"] for one in exchanges if one["bytes"]],
        "whole": [one["peer"] for one in exchanges if one["state"] == "whole"],
        "connected": [one["peer"] for one in exchanges],
        "bytes_used": used, "bytes_expected": 2 * EXPECTED, "chunks_used": used // 100, "chunks_expected": 20,
        "own_weight": 0.5, "fresh": False, "begin_at": float(number), "ready_at": number + train,
        "mixed_at": number + train + wait + 0.01, "wait_seconds": wait, "mix_seconds": 0.01,
        "bytes_sent": 2100, "bytes_received": used + 100, "late_chunks": 1, "early_dropped": 0, "bad_chunks": 0,
        "exchanges": exchanges,
    }  # fmt: skip
    return {
        "report": report,
        "clock": 10.0,
        "skipped": 0,
        "samples": 50,
        "metrics": {"loss": 0.5},
        "evaluation": None if evaluation is None else {"at": number + 2.0, "seconds": 0.2, **evaluation},
        "before": packed(measures.sketch([model], 1)),
        "after": packed(measures.sketch([model], 1)),
    }
