"""Merges the outcomes of a tree's nodes for a round into one, in the form of a single server's outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from thalweg.outcome.core import NodePart, NodeShare, Outcome, Participant, Timeline, Transfer, TreeFold, WorkSpan
from thalweg.trees import answers
from thalweg.trees.counters import (
    Counters,
    Created,
    Decisions,
    NodeClients,
    Percentiles,
    Reused,
    Routed,
    Started,
    Totals,
)


class Statement(NamedTuple):
    """A node's statement about its sums: the number of updates, their total weight, and whether all are whole."""

    updates: int
    weight: float
    whole: bool


@dataclass(frozen=True)
class Part:
    """A node's part in a round. If there is no outcome, the part does not count, and ``reason`` says why.

    ``shift``: seconds to add to the node's times to get times on the root's clock. ``first``: when its first update was
    whole, on the root's clock.
    """

    node: str
    clients: Sequence[str]
    outcome: answers.Outcome | None = None
    reason: str = ""
    shift: float = 0.0
    first: float | None = None

    @property
    def counted(self) -> int:
        """How many updates the node's sums contain."""
        return len(self.counting)

    @property
    def counting(self) -> list[Participant]:
        """The participants whose updates the node's sums contain."""
        return [] if self.outcome is None else self.outcome.counting


@dataclass(frozen=True)
class Mean:
    """The mean of a round's sums: how many of its bytes no update covers, and the wall clock time when it was made.

    ``top`` and ``shares`` as in ``TreeFold``. ``has``: the nodes that have the whole mean already.
    """

    uncovered_bytes: int | None
    done: float
    top: str | None = None
    shares: tuple[NodeShare, ...] | None = None
    has: Sequence[str] = ()


def only_of(outcome: answers.Outcome, clients: Sequence[str]) -> answers.Outcome:
    """Return an outcome with only these clients and their transfers."""
    own = set(clients)
    if all(one.client in own for one in outcome.participants):
        return outcome
    transfers = tuple(one for one in outcome.transfers if one.client in own)
    carried = {way: sum(one.wire_bytes for one in transfers if one.direction == way) for way in ("down", "up")}
    return replace(
        outcome,
        participants=tuple(one for one in outcome.participants if one.client in own),
        transfers=transfers,
        bytes_down=carried["down"],
        bytes_up=carried["up"],
    )


def timeline(parts: Iterable[Part]) -> Timeline:
    """Return the work of all nodes' workers in a round, with times on the root's clock."""
    timelines = [(part, part.outcome.fold.timeline) for part in parts if part.outcome is not None]
    measured = [(part, one) for part, one in timelines if one is not None]
    spans = (
        WorkSpan(span.worker, span.what, span.start + part.shift, span.end + part.shift, span.updates, part.node)
        for part, one in measured
        for span in one.did
    )
    return Timeline(tuple(spans), sum(one.left_out for _, one in measured))


def merged(
    number: int, parts: Sequence[Part], start: float, seconds: float, mean: Mean, *, between: Sequence[Transfer] = ()
) -> Outcome:
    """Return the outcome of a round that began at ``start`` on the root's clock and took ``seconds``.

    ``between`` are the transfers between the nodes, and between them and the root: of models, sums and means.
    """
    outcomes = [(part, part.outcome) for part in parts if part.outcome is not None]
    firsts = [part.first for part in parts if part.first is not None]
    transfers = tuple(_moved(one, part.shift) for part, outcome in outcomes for one in outcome.transfers)
    return Outcome(
        round=number,
        expected=sum(len(part.clients) for part in parts),
        complete=len(outcomes) == len(parts) and all(outcome.complete for _, outcome in outcomes),
        start=start,
        seconds=seconds,
        communication_seconds=covered(_span(one) for one in transfers),
        bytes_down=sum(outcome.bytes_down for _, outcome in outcomes),
        bytes_up=sum(outcome.bytes_up for _, outcome in outcomes),
        participants=tuple(one for part in parts for one in _participants(part)),
        transfers=transfers,
        congestion_control=next((outcome.congestion_control for _, outcome in outcomes), None),
        fold=TreeFold(
            uncovered_bytes=mean.uncovered_bytes,
            completion_seconds=mean.done - min(firsts) if firsts else None,
            nodes=tuple(_node_part(part) for part in parts),
            between_bytes=sum(one.wire_bytes for one in between),
            timeline=timeline(parts),
            top=mean.top,
            shares=mean.shares,
        ),
    )


def covered(spans: Iterable[tuple[float, float] | None]) -> float:
    """Return for how many seconds at least one of the spans lasted."""
    total = reached = 0.0
    for start, end in sorted(span for span in spans if span is not None):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def workers(
    counters: Sequence[Counters],
    nodes: Sequence[NodeClients] = (),
    *,
    top: str | None = None,
    cpu_seconds: dict[str, float | None] | None = None,
) -> Totals:
    """Merge the nodes' counters of their workers: sums, and of times the slowest node's percentiles.

    ``cpu_seconds`` is the CPU time of each node's own process.
    """
    planned = [one.decisions for one in counters if one.decisions is not None]
    kernels = [one.notes for one in counters if one.notes is not None]
    notes = Routed(*(sum(getattr(one, key) for one in kernels) for key in ("routed", "passed", "bytes")))
    return Totals(
        workers=sum(one.workers for one in counters),
        leaves=sum(one.leaves for one in counters),
        aggregators_created=sum(one.aggregators_created for one in counters),
        created=Created(sum(one.created.leaf for one in counters), sum(one.created.middle for one in counters)),
        reused=Reused(sum(one.reused.middle for one in counters)),
        retired=sum(one.retired for one in counters),
        # Those of each node are in the record's file of decisions.
        decisions=Decisions(sum(one.count for one in planned), ()) if planned else None,
        died=sum(one.died for one in counters),
        warm=sum(one.warm for one in counters),
        commits=sum(one.commits for one in counters),
        cpu_seconds=sum(one.cpu_seconds for one in counters),
        hops_cpu_seconds=sum(one.hops_cpu_seconds for one in counters),
        pool_bytes=sum(one.pool_bytes for one in counters),
        sums_bytes=sum(one.sums_bytes for one in counters),
        start_us=_slowest([one.start_us for one in counters]),
        resume_us=_slowest([one.resume_us for one in counters]),
        handover_us=_slowest([one.handover_us for one in counters]),
        fold_us=_slowest([one.fold_us for one in counters]),
        started=Started(sum(one.started.template for one in counters), sum(one.started.program for one in counters)),
        routes=", ".join(sorted({one.routes for one in counters})),
        routes_reason="; ".join(sorted({one.routes_reason for one in counters})),
        notes=notes if kernels else None,
        nodes_used=len(nodes),
        nodes=tuple(nodes),
        top=top,
        gateways_cpu_seconds=cpu_seconds,
    )


def _slowest(times: Sequence[Percentiles]) -> Percentiles:
    medians = [one.p50 for one in times if one.p50 is not None]
    tails = [one.p99 for one in times if one.p99 is not None]
    return Percentiles(max(medians, default=None), max(tails, default=None))


def _participants(part: Part) -> list[Participant]:
    """Return a node's participants. If its part does not count, all its clients are lost, with that part's reason.

    A client that the node does not mention is lost too.
    """
    if part.outcome is None:
        return [_lost(client, part.reason) for client in part.clients]
    own = part.outcome.participants
    silent = set(part.clients) - {one.client for one in own}
    return [*own, *(_lost(client, "it was not there") for client in sorted(silent))]


def _lost(client: str, reason: str) -> Participant:
    return Participant(client=client, state="lost", samples=0, metrics={}, coverage=0.0, reason=reason)


def _node_part(part: Part) -> NodePart:
    return NodePart(part.node, len(part.clients), part.counted, part.reason or None)


def _moved(transfer: Transfer, shift: float) -> Transfer:
    """Return a transfer with ``shift`` seconds added to its times."""

    def moved(seconds: float | None) -> float | None:
        return None if seconds is None else seconds + shift

    return replace(
        transfer,
        send_start=moved(transfer.send_start),
        send_end=moved(transfer.send_end),
        receive_start=moved(transfer.receive_start),
        receive_end=moved(transfer.receive_end),
    )


def _span(transfer: Transfer) -> tuple[float, float] | None:
    """Return a transfer's earliest start and latest end, by the clocks of both sides; None if either is unknown."""
    starts = [one for one in (transfer.send_start, transfer.receive_start) if one is not None]
    ends = [one for one in (transfer.send_end, transfer.receive_end) if one is not None]
    return (min(starts), max(ends)) if starts and ends else None
