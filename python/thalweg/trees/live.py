"""Live aggregation trees: places clients at nodes, makes the core's options of workers, and reports their work."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from thalweg import _core, machine, trees, wire
from thalweg.errors import PlanError
from thalweg.plan.options import CoreOptions, WorkersOptions
from thalweg.plan.systems import data_plane, has_leaves, has_load, has_middle, split, switches
from thalweg.sections.trees import NodesSection, TreeSection
from thalweg.trees import middles, tags
from thalweg.trees.counters import Totals
from thalweg.ui.phrases import number_of
from thalweg.ui.units import format_seconds

if TYPE_CHECKING:
    from thalweg.plan import Plan

PROGRAM: Final = Path(__file__).with_name("aggregator.py")
# Kinds of the control plane's reasons for where the top is, with tree.top = "first-finished".
OF_TOP: Final = ("first-finished", "one-node")


@dataclass(frozen=True)
class Placed:
    """The clients of each node that is used, by the node's name, and the reasons for that placement.

    ``above`` has the middle node above each used node, also above other middle nodes; the root's own nodes are missing.
    """

    clients: Mapping[str, list[str]]
    reasons: Sequence[str]
    above: Mapping[str, str] = field(default_factory=dict)

    @property
    def homes(self) -> dict[str, str]:
        """The node of each client."""
        return {client: node for node, clients in self.clients.items() for client in clients}

    @property
    def below(self) -> dict[str, list[str]]:
        """The nodes below each middle node."""
        nodes: dict[str, list[str]] = {}
        for node, middle in self.above.items():
            nodes.setdefault(middle, []).append(node)
        return nodes

    @property
    def of_root(self) -> dict[str, list[str]]:
        """The clients of each of the root's own nodes. Those of a middle node are all clients below it."""
        clients: dict[str, list[str]] = {}
        for node, own in self.clients.items():
            *_, top = self.path(node)
            clients.setdefault(top, []).extend(own)
        return clients

    def path(self, node: str) -> Iterable[str]:
        """Yield a node and all middle nodes above it."""
        yield node
        while node in self.above:
            node = self.above[node]
            yield node


def placed(plan: Plan) -> Placed:
    """Place a run's clients at nodes. Raises PlanError if a client has no node."""
    # The placement does not depend on the size of an update, so any size will do.
    scenario = replace(trees.scenario(plan, update_bytes=1), clients=len(plan.members))
    above = middles.parents(plan)
    if above:
        # With the policy "dedicated" the control plane would reserve one of the nodes for the top.
        scenario = replace(scenario, config=replace(scenario.config, top="first-finished"))
    decisions = trees.placed(scenario)
    at: dict[int, list[str]] = {}
    for client, home in zip(plan.members, decisions.plan.homes, strict=True):
        if home is None:
            raise PlanError(f"{client} has no node", "Remove nodes.groups and tree.tag")
        at.setdefault(home, []).append(client)
    # Below middle nodes the top is the run's process, of which the control plane knows nothing.
    decided = (trees.Reason.of(one) for one in decisions.reasons)
    reasons = [one.text for one in decided if not (above and one.kind in OF_TOP)]
    clients = {f"node-{home}": at[home] for home in sorted(at)}
    every = Placed(clients, [*reasons, *_groups(plan, at)], above)
    used = {name for node in clients for name in every.path(node)}
    made = replace(every, above={node: middle for node, middle in above.items() if node in used})
    levels = [f"below {middle}: {', '.join(nodes)}" for middle, nodes in made.below.items()]
    return replace(made, reasons=[*made.reasons, *levels])


def placed_anew(
    plan: Plan, lost: str, clients: Sequence[str], left: Mapping[str, int]
) -> tuple[dict[str, str], list[str]]:
    """Return new nodes for the clients of a lost node, by the clients' names, and the reasons if there are none.

    ``left`` gives the number of clients of each remaining node. Clients stay in their group. A client for which no node
    is left is missing in the result. A node that the plan does not name has the plan's capacity and serves all groups.
    """
    whole = trees.scenario(plan, update_bytes=1)
    of = {f"node-{place}": node for place, node in enumerate(whole.nodes)}
    plain = replace(whole.nodes[0], group=None)
    group = of.get(lost, plain).group
    open_ = [name for name in left if of.get(name, plain).group in (None, group)]
    if not open_:
        return {}, [f"no node is left for the group of {lost}"]
    full = trees.UPDATE * (plan.nodes or NodesSection()).capacity
    room = {name: max(1, full - trees.UPDATE * left[name]) for name in open_}
    nodes = [replace(of.get(name, plain), capacity=room[name], group=None) for name in open_]
    # With the policy "dedicated" the control plane would reserve one of the remaining nodes for the top.
    config = replace(whole.config, top="first-finished")
    rest = replace(whole, nodes=nodes, clients=len(clients), groups=[], goal=None, config=config)
    homes = trees.placed(rest).plan.homes
    return {client: open_[home] for client, home in zip(clients, homes, strict=True) if home is not None}, []


def _groups(plan: Plan, at: Mapping[int, Sequence[str]]) -> list[str]:
    """Return a line for each node about the group of clients that it serves; none without groups."""
    groups = tags.groups(plan.tree or TreeSection(), plan.nodes or NodesSection())
    served = ((place, groups.of_node(place)) for place in sorted(at))
    return [
        f"node-{place} serves the group {groups.clients[group]!r}: {', '.join(at[place])}"
        for place, group in served
        if group is not None
    ]


def command() -> list[str]:
    """Return the command that starts a worker."""
    return [sys.executable, "-I", "-S", str(PROGRAM), _core.__file__]


def options(plan: Plan) -> CoreOptions:
    """Return the core's options of a server with workers; none if the server folds updates itself."""
    if plan.aggregation.shape != "tree":
        return {}
    tree = plan.tree or TreeSection()
    on = switches(tree)
    made = WorkersOptions(
        count=workers(plan),
        split=split(tree),
        data_plane=data_plane(tree),
        side_process=on["side_process"],
        start=on["start"],
        container_start=tree.container_start,
        autoscaler=_autoscaler(tree) if on["scaling"] == "knative" else None,
        plans=_plans(plan) if has_load(tree, plan.nodes) else None,
        updates=_most_updates(plan),
        middle=_middle(tree),
        routes=tree.routes,
        timing=on["timing"],
        command=command(),
    )
    return {"workers": made}


def _autoscaler(tree: TreeSection) -> dict[str, object]:
    """Return the autoscaler's settings. Its default concurrency is the number of inputs of a leaf."""
    own = {} if tree.autoscaler is None else tree.autoscaler.model_dump(exclude_none=True)
    return {"concurrency": tree.inputs, **own}


def _plans(plan: Plan) -> dict[str, object]:
    """Return the settings by which a node measures its load, and plans how many leaves it has, while the job runs."""
    tree = plan.tree or TreeSection()
    history = round(tree.history * 1000)
    return {
        "split": split(tree) if has_leaves(tree) else "ranges",
        "scaling": switches(tree)["scaling"],
        "inputs": tree.inputs,
        "workers": workers(plan),
        "history": history,
        "every": tree.every,
    }


def _middle(tree: TreeSection) -> str:
    """Return who adds up the sums of a node's leaves: a leaf that takes over, a worker of its own, or the node."""
    if not has_middle(tree):
        return "node"
    return "reused" if switches(tree)["reuse"] else "own"


def workers(plan: Plan) -> int:
    """Return how many workers a node can have, without a middle of its own.

    With ``tree.split = "ranges"`` or flat levels the default is one worker: the memory's bandwidth limits all workers
    together. Otherwise leaves fold whole updates. A planned hierarchy has at most as many leaves as a node's updates
    divided by the inputs of a leaf (LIFL section 5.2), and at most ``tree.workers``; the core plans how many get
    updates (``_plans``). With other scaling ``tree.workers`` is the number. Without that key there are at most as many
    workers as cores.
    """
    tree = plan.tree or TreeSection()
    on = switches(tree)
    if split(tree) == "ranges" or on["levels"] == "flat":
        return tree.workers or 1
    planned = -(-_most_updates(plan) // tree.inputs)
    if tree.workers is None:
        return min(planned, machine.cores())
    return min(planned, tree.workers) if on["scaling"] == "hierarchy" else tree.workers


def _most_updates(plan: Plan) -> int:
    """Return how many updates a node can get in a round."""
    if plan.nodes is None or plan.nodes.count == 1:
        return plan.participants
    return min(plan.participants, plan.nodes.capacity)


@dataclass(frozen=True)
class CpuSeconds:
    """CPU time of the processes of a tree. It is None in virtual time.

    ``gateways`` has that of each node's own process; ``hops`` is that of brokers and side processes, if there were any.
    """

    server: float | None
    workers: float | None
    gateways: Mapping[str, float | None] | None = None
    hops: float | None = None

    def table(self) -> dict[str, object]:
        """Return the fields by name, without those for processes that there were not."""
        return wire.sparse(self)


@dataclass(frozen=True)
class WorkReport:
    """What a run's workers have done: the system that the plan names, their counters, and everybody's CPU time."""

    system: str
    # The switches of the system that did something in the run.
    switches: Mapping[str, object]
    counters: Totals
    cpu_seconds: CpuSeconds
    # PSS of the server's process and of each worker's at the end, in a tree of one node; 0 if unknown.
    memory: tuple[int, Sequence[int]] | None = None

    def table(self) -> dict[str, object]:
        """Return the table ``tree`` of the manifest."""
        counters = self.counters.table()
        for name in ("gateways_cpu_seconds", "hops_cpu_seconds"):
            counters.pop(name, None)
        own = {} if self.memory is None else {"pss_bytes": {"server": self.memory[0], "workers": self.memory[1]}}
        return {"system": self.system, "switches": self.switches, **counters, "cpu_seconds": self.cpu_seconds, **own}

    def with_times(self, times: Sequence[float | None]) -> dict[str, object]:
        """Return the object ``tree`` of ``--json``. ``times`` are the seconds of each round's aggregation."""
        return {**self.table(), "aggregation_completion_seconds": times}

    def sentence(self) -> str:
        """Return a line about the work of the workers."""
        counts, half = self.counters, self.counters.handover_us.p50
        handed = "" if half is None else f", an update handed over in {format_seconds(half / 1e6)}"
        died = f", {counts.died} died" if counts.died else ""
        where = "one node" if counts.nodes_used == 1 else f"{counts.nodes_used} nodes"
        routes = {"kernel": " inside the kernel", "node": " over Unix sockets"}
        route = routes.get(counts.routes, "") if handed else ""
        return f"tree: {number_of(counts.workers, 'worker')} on {where}{died}{handed}{route}"


def followed(plan: Plan, totals: Totals) -> dict[str, object]:
    """Return the switches of a plan's system that did something in the run, by what the workers have counted."""
    tree = plan.tree or TreeSection()
    on: dict[str, object] = dict(switches(tree))
    did = {
        # A leaf took over the middle's work, or a process of its own did it.
        "reuse": totals.reused.middle > 0 or totals.created.middle > 0,
        # Leaves were planned, their number was fixed, or an autoscaler decided.
        "scaling": on["scaling"] == "knative" or has_leaves(tree),
        "placement": totals.nodes is not None and len(totals.nodes) > 1,
    }
    return {key: value for key, value in on.items() if did.get(key, True)}


def work_report(
    plan: Plan,
    counters: str | None,
    cpu_seconds: float | None,
    memory: tuple[int, Sequence[int]] | None = None,
) -> WorkReport | None:
    """Return what workers have done, from the core's counters (JSON); None without workers.

    ``cpu_seconds`` is the CPU time of the server's own process since it began to listen; None in virtual time.
    ``memory`` is the PSS of the server and of each worker, if it was measured.
    """
    if counters is None:
        return None
    tree, totals = plan.tree or TreeSection(), wire.decode(Totals, counters)
    hops = totals.hops_cpu_seconds if totals.hops_cpu_seconds > 0 and cpu_seconds is not None else None
    workers = None if cpu_seconds is None else totals.cpu_seconds
    cpu = CpuSeconds(cpu_seconds, workers, totals.gateways_cpu_seconds, hops)
    return WorkReport(tree.system, followed(plan, totals), totals, cpu, memory)
