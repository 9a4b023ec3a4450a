"""Counters of the work of a tree's workers, as the core and the nodes report them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from thalweg import wire


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of a time of workers, in microseconds. None if nothing was measured."""

    p50: int | float | None
    p99: int | float | None


@dataclass(frozen=True)
class Started:
    """How many workers were started from the template process, and how many as new programs."""

    template: int
    program: int


@dataclass(frozen=True)
class Routed:
    """The kernel's counts of the workers' notes that it routed, and that it passed to the node."""

    routed: int
    passed: int
    bytes: int


@dataclass(frozen=True)
class Now:
    """What workers are doing at this moment."""

    folds: int
    ready: int
    places: int
    free: int
    handover_bounds_us: tuple[int | float, ...]
    handover_counts: tuple[int, ...]
    handover_sum_us: int | float


@dataclass(frozen=True, kw_only=True)
class Counters:
    """What workers have done."""

    workers: int
    aggregators_created: int
    died: int
    warm: int
    commits: int
    started: Started
    start_us: Percentiles
    resume_us: Percentiles
    handover_us: Percentiles
    fold_us: Percentiles
    cpu_seconds: int | float
    hops_cpu_seconds: int | float
    pool_bytes: int
    sums_bytes: int
    routes: str
    routes_reason: str
    notes: Routed | None


@dataclass(frozen=True, kw_only=True)
class Workers(Counters):
    """What the workers of a node have done, and what they are doing now."""

    now: Now


@dataclass(frozen=True)
class NodeClients:
    """How many clients a node of a tree has."""

    node: str
    clients: int


@dataclass(frozen=True, kw_only=True)
class Totals(Counters):
    """What the workers of all nodes have done. Without ``nodes`` the server itself is the only node.

    ``gateways_cpu_seconds`` is the CPU time of each node's own process.
    """

    nodes_used: int = 1
    nodes: tuple[NodeClients, ...] | None = None
    top: str | None = None
    gateways_cpu_seconds: Mapping[str, float | None] | None = None

    def table(self) -> dict[str, object]:
        """Return the fields by name, without those that only a tree of several nodes has if there is one node."""
        return wire.sparse(self)
