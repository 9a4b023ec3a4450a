"""Aggregation trees that run: the workers that the core is told of, and what came of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from thalweg import _core, machine, trees
from thalweg.errors import PlanError
from thalweg.plan.systems import split, switches
from thalweg.sections.trees import NodesSection, TreeSection
from thalweg.trees import tags

if TYPE_CHECKING:
    from thalweg.plan import Plan

# Switches that only the simulator follows. In a run a node itself adds up its leaves' sums, so there is no next level.
NOT_FOLLOWED: Final = ("reuse",)
PROGRAM: Final = Path(__file__).with_name("aggregator.py")


@dataclass(frozen=True)
class Placed:
    """Which clients send to which node, by the names of nodes that are used; and why."""

    clients: Mapping[str, list[str]]
    reasons: Sequence[str]

    @property
    def homes(self) -> dict[str, str]:
        """The node of each client."""
        return {client: node for node, clients in self.clients.items() for client in clients}


def placed(plan: Plan) -> Placed:
    """Return the nodes that a run uses, with their clients. Raises PlanError if a client has no node."""
    # How large updates are makes no difference here.
    given = {**trees.scenario(plan, update_bytes=1), "clients": len(plan.members)}
    found = json.loads(_core.tree_plan(json.dumps(given)))
    at: dict[int, list[str]] = {}
    for client, home in zip(plan.members, found["plan"]["homes"], strict=True):
        if home is None:
            raise PlanError(f"{client} has no node", "Remove nodes.groups and tree.tag")
        at.setdefault(home, []).append(client)
    reasons = [one["text"] for one in found["reasons"]]
    return Placed({f"node-{home}": at[home] for home in sorted(at)}, [*reasons, *_groups(plan, at)])


def placed_anew(
    plan: Plan, lost: str, clients: Sequence[str], left: Mapping[str, int]
) -> tuple[dict[str, str], list[str]]:
    """Return where clients of a lost node go, by their names, and why; ``left`` has how many clients each node has.

    They stay in their group. A client for which no node is left has none. Nodes that a plan does not name have its
    capacity, and serve all.
    """
    whole = trees.scenario(plan, update_bytes=1)
    of = {f"node-{place}": node for place, node in enumerate(whole["nodes"])}
    plain = {**whole["nodes"][0], "group": None}
    group = of.get(lost, plain)["group"]
    open_ = [name for name in left if of.get(name, plain)["group"] in (None, group)]
    if not open_:
        return {}, [f"no node is left for the group of {lost}"]
    full = trees.UPDATE * (plan.nodes or NodesSection()).capacity
    room = {name: max(1, full - trees.UPDATE * left[name]) for name in open_}
    nodes = [{**of.get(name, plain), "capacity": room[name], "group": None} for name in open_]
    # The node of a dedicated top is none of these.
    config = {**whole["config"], "top": "first-finished"}
    given = {**whole, "nodes": nodes, "clients": len(clients), "groups": [], "goal": None, "config": config}
    homes = json.loads(_core.tree_plan(json.dumps(given)))["plan"]["homes"]
    return {client: open_[home] for client, home in zip(clients, homes, strict=True) if home is not None}, []


def _groups(plan: Plan, at: Mapping[int, Sequence[str]]) -> list[str]:
    """Say which group of clients each node serves, if there are groups."""
    groups = tags.groups(plan.tree or TreeSection(), plan.nodes or NodesSection())
    served = ((place, groups.of_node(place)) for place in sorted(at))
    return [
        f"node-{place} serves the group {groups.clients[group]!r}: {', '.join(at[place])}"
        for place, group in served
        if group is not None
    ]


def command() -> list[str]:
    """Return the program of a worker."""
    return [sys.executable, "-I", "-S", str(PROGRAM), _core.__file__]


def options(plan: Plan) -> dict[str, Any]:
    """Return the core's options of a server whose updates workers fold; none if the server folds them itself."""
    if plan.aggregation.shape != "tree":
        return {}
    tree = plan.tree or TreeSection()
    on = switches(tree)
    # An aggregator that is all there is on its node receives updates itself.
    is_monolith = on["data_plane"] == "sockets" and on["levels"] == "flat"
    told = {
        "count": workers(plan),
        "split": split(tree),
        "data_plane": "pool" if is_monolith else on["data_plane"],
        "side_process": on["side_process"],
        "start": on["start"],
        "autoscaler": _autoscaler(tree) if on["scaling"] == "knative" else None,
        "routes": tree.routes,
        "timing": on["timing"],
        "command": command(),
    }
    return {"workers": told}


def _autoscaler(tree: TreeSection) -> dict[str, Any]:
    """Return the autoscaler's numbers; a worker should have no more under way than a leaf has inputs."""
    own = {} if tree.autoscaler is None else tree.autoscaler.model_dump(exclude_none=True)
    return {"concurrency": tree.inputs, **own}


def workers(plan: Plan) -> int:
    """Return how many workers the node has.

    With ``tree.split = "ranges"`` or flat levels, one is enough without ``tree.workers``: the memory's bandwidth bounds
    all workers together. Otherwise leaves fold whole updates. A planned hierarchy has as many leaves as a node's
    updates divided by the inputs of a leaf (LIFL section 5.2), and at most ``tree.workers``. With other scaling
    ``tree.workers`` says how many. Without that key there are at most as many as cores.
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
    """Return how many updates a node can have in a round."""
    if plan.nodes is None or plan.nodes.count == 1:
        return plan.participants
    return min(plan.participants, plan.nodes.capacity)


def system(plan: Plan) -> dict[str, Any]:
    """Return which system a plan's tree is, and those of its switches that a run follows."""
    tree = plan.tree or TreeSection()
    followed = {key: value for key, value in switches(tree).items() if key not in NOT_FOLLOWED}
    return {"system": tree.system, "switches": followed}


def facts(told: str | None, cpu_seconds: float | None) -> dict[str, Any]:
    """Return what a server's workers have done so far, from what it ``told``; nothing if it has none.

    ``cpu_seconds`` is the CPU time that the server's own process has had since it listens, None in virtual time.
    """
    if told is None:
        return {}
    found: dict[str, Any] = json.loads(told)
    gateways, hops = found.pop("gateways_cpu_seconds", None), found.pop("hops_cpu_seconds", 0.0)
    found.pop("now", None)  # of a moment, for whoever watches the run
    workers = None if cpu_seconds is None else found["cpu_seconds"]
    found["cpu_seconds"] = {"server": cpu_seconds, "workers": workers}
    found["cpu_seconds"] |= {} if gateways is None else {"gateways": gateways}
    found["cpu_seconds"] |= {"hops": hops} if hops > 0 and cpu_seconds is not None else {}
    return {"nodes_used": 1, **found}


def table(found: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the object ``tree`` of ``--json``; ``rounds`` are a journal's entries."""
    times = [entry["fold"]["completion_seconds"] for entry in rounds]
    return {**found, "aggregation_completion_seconds": times}


def sentence(found: Mapping[str, Any]) -> str:
    """Say in a line what the workers have done."""
    half = found["handover_us"]["p50"]
    handed = "" if half is None else f", an update handed over in {half:.0f} us"
    gone = f", {found['died']} died" if found["died"] else ""
    count, nodes = found["workers"], found["nodes_used"]
    where = "one node" if nodes == 1 else f"{nodes} nodes"
    route = {"kernel": " inside the kernel", "node": " over Unix sockets"}.get(found["routes"], "") if handed else ""
    return f"tree: {count} {'worker' if count == 1 else 'workers'} on {where}{gone}{handed}{route}"
