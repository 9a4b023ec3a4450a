"""The numbers of aggregation trees that experiments read from records."""

from __future__ import annotations

import pytest

from experiments.aggregation import active


def row(node: str, *decisions: tuple[float, int]) -> dict[str, object]:
    return {"round": 1, "node": node, "decisions": [{"at": at, "leaves": leaves} for at, leaves in decisions]}


def test_active_leaves_are_averaged_over_time() -> None:
    rows = [row("node-0", (1.0, 2), (3.0, 0)), row("node-0", (5.0, 4)), row("node-1", (9.0, 10), (21.0, 99))]
    # Over 10 s from the first decision: 2 leaves for 2 s, none for 2 s and 4 for 6 s; 10 leaves of node-1 for 2 s.
    assert active(rows, 10.0) == pytest.approx((2 * 2 + 4 * 6 + 10 * 2) / 10)


def test_without_decisions_nothing_is_averaged() -> None:
    assert active([], 10.0) is None
    assert active([{"round": 1, "node": "root", "balance": {}}], 10.0) is None
