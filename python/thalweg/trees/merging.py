"""Merges the outcomes of a tree's nodes for a round into one, in the form of a single server's outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any, Final, NamedTuple

# Keys of a transfer whose values are times on the node's clock.
TIMES: Final = ("send_start", "send_end", "receive_start", "receive_end")
# Counters of workers. The merged value is the sum over all nodes.
ADDED: Final = (
    "workers",
    "aggregators_created",
    "died",
    "warm",
    "commits",
    "cpu_seconds",
    "hops_cpu_seconds",
    "pool_bytes",
    "sums_bytes",
)

# Percentiles of times. The merged value is the largest one of all nodes.
SLOWEST: Final = ("start_us", "resume_us", "handover_us", "fold_us")


class Statement(NamedTuple):
    """A node's statement about its sums: the number of updates, their total weight, and whether all are whole."""

    updates: int
    weight: float
    whole: bool


@dataclass
class Part:
    """A node's part in a round. If there is no outcome, the part does not count, and ``reason`` says why.

    ``shift``: seconds to add to the node's times to get times on the root's clock. ``first``: when its first update was
    whole, on the root's clock.
    """

    node: str
    clients: Sequence[str]
    outcome: Mapping[str, Any] | None = None
    reason: str = ""
    shift: float = 0.0
    first: float | None = None
    # Transfers between nodes: of the model to this node, and of its sums to the top.
    between: Sequence[Mapping[str, Any]] = field(default_factory=list)

    def drop(self, reason: str) -> None:
        """Drop the outcome for this reason, so that the round counts none of the node's updates."""
        self.outcome, self.reason = None, reason

    @property
    def counted(self) -> int:
        """How many updates the node's sums contain."""
        return len(self.counting)

    @property
    def counting(self) -> list[Mapping[str, Any]]:
        """The participants whose updates the node's sums contain."""
        parts = () if self.outcome is None else self.outcome["participants"]
        return [part for part in parts if part["state"] in ("whole", "partial")]

    @property
    def statement(self) -> Statement:
        """The node's statement about its sums, computed from the participants of its outcome."""
        counting = self.counting
        whole = all(part["state"] == "whole" for part in counting)
        return Statement(len(counting), fsum(part["samples"] for part in counting), whole)


def timeline(parts: Iterable[Part]) -> dict[str, Any]:
    """Return the work of all nodes' workers in a round, with times on the root's clock."""
    told = [(part, found) for part in parts if (found := (_of(part).get("fold") or {}).get("timeline")) is not None]
    return {
        "did": [
            {"node": part.node, **one, "start": one["start"] + part.shift, "end": one["end"] + part.shift}
            for part, found in told
            for one in found["did"]
        ],
        "left_out": sum(found["left_out"] for _, found in told),
    }


def merged(number: int, parts: Sequence[Part], start: float, seconds: float, fold: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outcome of a round that began at ``start`` on the root's clock and took ``seconds``."""
    said = [part for part in parts if part.outcome is not None]
    transfers = [_moved(way, part.shift) for part in said for way in _of(part)["transfers"]]
    between = [way for part in parts for way in part.between]
    return {
        "round": number,
        "expected": sum(len(part.clients) for part in parts),
        "complete": len(said) == len(parts) and all(_of(part)["complete"] for part in said),
        "start": start,
        "seconds": seconds,
        "communication_seconds": covered(_span(way) for way in transfers),
        "bytes_down": sum(_of(part)["bytes_down"] for part in said),
        "bytes_up": sum(_of(part)["bytes_up"] for part in said),
        "participants": [one for part in parts for one in _participants(part)],
        "transfers": transfers,
        "congestion_control": next((_of(part)["congestion_control"] for part in said), None),
        "fold": {
            **fold,
            "nodes": [_told(part) for part in parts],
            "between_bytes": sum(way["wire_bytes"] for way in between),
            "timeline": timeline(parts),
        },
    }


def covered(spans: Iterable[tuple[float, float] | None]) -> float:
    """Return the seconds that at least one span covers."""
    total = reached = 0.0
    for start, end in sorted(span for span in spans if span is not None):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def workers(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the nodes' counters of their workers: sums, and of times the slowest node's percentiles."""
    found: dict[str, Any] = {key: sum(one[key] for one in told) for key in ADDED}
    slowest = {key: _slowest([one[key] for one in told]) for key in SLOWEST}
    started = {how: sum(one["started"][how] for one in told) for how in ("template", "program")}
    return {**found, "started": started, **slowest, **_routes(told)}


def _slowest(times: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    known = {key: [value for one in times if (value := one[key]) is not None] for key in ("p50", "p99")}
    return {key: max(values, default=None) for key, values in known.items()}


def _routes(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how notes were routed on the nodes, the reasons, and the sums of the kernels' counts of notes."""
    routes = sorted({one["routes"] for one in told})
    reasons = sorted({one["routes_reason"] for one in told})
    counted = [one["notes"] for one in told if one["notes"] is not None]
    notes = {key: sum(one[key] for one in counted) for key in counted[0]} if counted else None
    return {"routes": ", ".join(routes), "routes_reason": "; ".join(reasons), "notes": notes}


def _of(part: Part) -> Mapping[str, Any]:
    return part.outcome or {}


def _participants(part: Part) -> list[dict[str, Any]]:
    """Return a node's participants. If its part does not count, all its clients are lost for the part's reason.

    A client that the node does not mention is lost too.
    """
    if part.outcome is None:
        return [_lost(client, part.reason) for client in part.clients]
    own = part.outcome["participants"]
    silent = set(part.clients) - {one["client"] for one in own}
    return [dict(one) for one in own] + [_lost(client, "it was not there") for client in sorted(silent)]


def _lost(client: str, reason: str) -> dict[str, Any]:
    return {"client": client, "state": "lost", "samples": 0, "metrics": {}, "coverage": 0.0, "reason": reason}


def _told(part: Part) -> dict[str, Any]:
    return {"node": part.node, "clients": len(part.clients), "counted": part.counted, "reason": part.reason or None}


def _moved(way: Mapping[str, Any], shift: float) -> dict[str, Any]:
    return {**way, **{key: None if way[key] is None else way[key] + shift for key in TIMES}}


def _span(way: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return a transfer's first known start and last known end, on either side; None if one is missing."""
    starts = [way[key] for key in ("send_start", "receive_start") if way[key] is not None]
    ends = [way[key] for key in ("send_end", "receive_end") if way[key] is not None]
    return (min(starts), max(ends)) if starts and ends else None
