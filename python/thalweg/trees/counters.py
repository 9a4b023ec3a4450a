"""Counters of the work of a tree's workers, as the core and the nodes report them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from thalweg import wire


@dataclass(frozen=True)
class Percentiles:
    """The median and the 99th percentile of workers' times, in microseconds. None if nothing was measured."""

    p50: int | float | None
    p99: int | float | None


@dataclass(frozen=True)
class Started:
    """How workers' processes were started: forked by the node's template process, or as new programs."""

    template: int
    program: int


@dataclass(frozen=True)
class Created:
    """How many workers' processes were started: as leaves, and only to add up the leaves' sums."""

    leaf: int
    middle: int


@dataclass(frozen=True)
class Reused:
    """How often a leaf took over the work of another role (LIFL section 5.3)."""

    middle: int


@dataclass(frozen=True)
class LiveDecision:
    """A plan of a node's workers that was made while the job ran (LIFL section 5.2), or a change by an autoscaler.

    - ``number``: counts the node's plans from 1; the first follows from the number of its clients.
    - ``at``: seconds since the node's workers began.
    - ``rate``, ``seconds``: updates a second while there were any (k), and seconds that an update took, waiting
      included (E), since the last plan; 0 in the first, and of an autoscaler.
    - ``queue``, ``estimate``: k * E in updates, and smoothed over time; of an autoscaler, updates under way now and on
      average over its stable window.
    - ``before``, ``leaves``: leaves until then, and from then on.
    - ``middle``: whether a middle adds up the leaves' sums.
    - ``reasons``: in words.
    """

    number: int
    at: int | float
    rate: int | float
    seconds: int | float
    queue: int | float
    estimate: int | float
    before: int
    leaves: int
    middle: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Decisions:
    """How many plans a node made while the job ran, and the latest of them, oldest first."""

    count: int
    latest: tuple[LiveDecision, ...]


@dataclass(frozen=True)
class Routed:
    """The eBPF program's counts of notes between the node and its workers (``crates/workers/src/routes``).

    - ``routed``: notes that the program delivered inside the kernel, past TCP.
    - ``passed``: notes that it left to the node, because its budget was used up or the receiver was gone.
    - ``bytes``: bytes of both kinds.
    """

    routed: int
    passed: int
    bytes: int


@dataclass(frozen=True)
class Now:
    """What the workers and the pool of a node have done up to now; the node reports this during a round too.

    - ``folds``: updates that workers have folded. An update that several workers share counts once for each.
    - ``ready``: processes that have reported that they are ready, since the node's process began.
    - ``places``, ``free``: slots of the pool, each for one update, and how many of them are free.
    - ``handover_bounds_us``: upper bounds of the classes of a histogram of hand-over times, in microseconds.
    - ``handover_counts``: hand-overs in each class; the last class has those above all bounds.
    - ``handover_sum_us``: the sum of all hand-over times.
    """

    folds: int
    ready: int
    places: int
    free: int
    handover_bounds_us: tuple[int | float, ...]
    handover_counts: tuple[int, ...]
    handover_sum_us: int | float


@dataclass(frozen=True, kw_only=True)
class Counters:
    """What workers have done since the node's process began.

    - ``workers``: workers that a node can have, each with memory for sums.
    - ``leaves``: workers that get updates now; a plan or an autoscaler may change it.
    - ``aggregators_created``: processes that were started, also in place of others (LIFL's aggregators).
    - ``created``: the same by role.
    - ``reused``: rounds in which a leaf took over the work of the middle.
    - ``retired``: processes that were asked to end since no plan or autoscaler wanted them, or the round was over.
    - ``decisions``: plans made while the job ran, or changes by an autoscaler; None if nobody measures the load.
    - ``died``: processes that ended although nobody asked them to.
    - ``warm``: workers that began a round with the process of an earlier round, counted once a round.
    - ``commits``: times that a worker committed its sums. What they contain is not folded again if it dies.
    - ``started``: how the processes were started.
    - ``start_us``: from the launch of a process until it reports that it is ready.
    - ``resume_us``: from when the node found a worker dead until the process in its place is ready.
    - ``handover_us``: from the node's note until an idle worker has opened the update.
    - ``fold_us``: of the same updates: from the node's note until the worker has folded the update.
    - ``cpu_seconds``: CPU time of the workers, as of each one's last commit.
    - ``hops_cpu_seconds``: CPU time of brokers and side processes between node and workers.
    - ``pool_bytes``, ``sums_bytes``: shared memory of the pool, and of the workers' sums.
    - ``routes``, ``routes_reason``: "kernel" if notes go inside the kernel, else "node"; and why.
    - ``notes``: counts of notes that go inside the kernel; None if they go through the node.
    """

    workers: int
    leaves: int
    aggregators_created: int
    created: Created
    reused: Reused
    retired: int
    decisions: Decisions | None
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

    - ``nodes_used``: nodes that have clients.
    - ``nodes``: each node, with how many clients it has.
    - ``top``: the plan's top (``tree.top``).
    - ``gateways_cpu_seconds``: CPU time of each node's own process, by the node's name.
    """

    nodes_used: int = 1
    nodes: tuple[NodeClients, ...] | None = None
    top: str | None = None
    gateways_cpu_seconds: Mapping[str, float | None] | None = None

    def table(self) -> dict[str, object]:
        """Return the fields by name, without those that only a tree of several nodes has if there is one node."""
        return wire.sparse(self)
