"""Refuses settings that a job with an aggregation tree cannot have, and those that only such a job can have."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from thalweg.errors import PlanError
from thalweg.plan import effects
from thalweg.plan.systems import split, switches
from thalweg.sections.trees import NodesSection, TreeSection
from thalweg.transports import registry

if TYPE_CHECKING:
    from thalweg.plan import Plan

# The address at which a server listens if other machines must reach it.
EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - with TLS and tokens


def check(plan: Plan) -> None:
    """Refuse a tree that cannot be run. Raises PlanError."""
    if plan.aggregation.shape != "tree":
        for section in ("tree", "nodes"):
            if getattr(plan, section) is not None:
                raise PlanError(
                    f"[{section}] is for aggregation trees, and in this job the server folds updates itself",
                    f"Set aggregation.shape = 'tree' (--aggregation tree), or remove [{section}]",
                )
        return
    effects.check_tree(plan)
    several = has_nodes(plan)
    _switches(plan.tree or TreeSection())
    _engine(plan, several=several)
    if several:
        _nodes(plan)


def has_nodes(plan: Plan) -> bool:
    """Return whether a plan's updates are folded by several nodes, whose sums meet at a top."""
    return plan.aggregation.shape == "tree" and plan.nodes is not None and plan.nodes.count > 1


def grouped(plan: Plan) -> list[str]:
    """Return the given keys that divide clients into groups with nodes of their own."""
    keys = {
        "tree.tag": None if plan.tree is None else plan.tree.tag,
        "nodes.groups": None if plan.nodes is None else plan.nodes.groups,
    }
    return [key for key, value in keys.items() if value]


def nodes_of(plan: Plan) -> list[str]:
    """Return the names of the nodes of a plan with several nodes, else an empty list."""
    return [f"node-{place}" for place in range(plan.nodes.count)] if plan.nodes is not None and has_nodes(plan) else []


# What the names of middle nodes begin with.
MIDDLE: Final = "middle-"


def middle_name(level: int, place: int) -> str:
    """Return the name of a middle node. ``level`` counts from 1, next to the nodes that have clients."""
    return f"{MIDDLE}{level}-{place}"


def middle_nodes_of(plan: Plan) -> list[str]:
    """Return the names of the middle nodes that ``nodes.middle`` asks for. A schema of Flame may ask for others."""
    levels = () if plan.nodes is None or not has_nodes(plan) else plan.nodes.middle or ()
    return [middle_name(level, place) for level, count in enumerate(levels, 1) for place in range(count)]


def is_spread(plan: Plan) -> bool:
    """Return whether nodes that a run starts may be on other machines than the run."""
    return has_nodes(plan) and plan.nodes is not None and plan.nodes.ray_address is not None


def reached(plan: Plan) -> str:
    """Return the URL that decides whether a run's links need TLS: one on all interfaces if nodes may be elsewhere."""
    return f"{plan.scheme}://{EVERYWHERE}:0" if is_spread(plan) else plan.url


def _engine(plan: Plan, *, several: bool) -> None:
    """Refuse the engine ``ray`` if it cannot run the plan."""
    nodes = plan.nodes or NodesSection()
    if nodes.engine != "ray" or not several:
        return
    for section in ("network", "stress"):
        if getattr(plan, section) is not None:
            raise PlanError(
                f"[{section}] is for nodes on this machine, and Ray may start them on others",
                f"Remove [{section}], or take --engine local",
            )
    if nodes.ray_address is None:
        return
    if nodes.ray_address != "auto" and not _is_address(nodes.ray_address):
        raise PlanError(
            f"nodes.ray_address is {nodes.ray_address!r}",
            "Give host:port of the cluster, such as 10.0.0.1:6379, or auto",
        )
    scheme = plan.transport.url.partition("://")[0]
    if scheme != "auto" and not registry.can(scheme).remote:
        raise PlanError(
            f"{scheme} stays within one machine, and Ray starts nodes on several", "Take another transport, such as tcp"
        )


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and "/" not in host and port.isdecimal()


def _nodes(plan: Plan) -> None:
    """Refuse several nodes if the plan's other settings do not allow them."""
    nodes = plan.nodes or NodesSection()
    is_emulated = plan.network is not None and plan.network.emulator != "none"
    for key in ("link", "client_link"):
        if getattr(nodes, key) is not None and not is_emulated:
            raise PlanError(
                f"nodes.{key} is the rate of an emulated link, and the plan has no [network]",
                f"Give --network (rate=unlimited, if clients' links are to have no limit), or remove nodes.{key}",
            )
    if nodes.middle:
        _middle(plan, nodes, nodes.middle)
    if (plan.tree or TreeSection()).top == "sharded" and plan.repair.spread:
        raise PlanError(
            "repair.spread scatters losses over all bytes, and with a sharded top each node has only a part of them",
            "Remove repair.spread, or take tree.top = 'first-finished'",
        )
    if (plan.tree or TreeSection()).top != "dedicated":
        for key, what in (
            ("choose", "draws clients anew until enough updates count"),
            ("goal", "replaces a lost node's updates by others"),
        ):
            if getattr(plan.job, key) is not None:
                raise PlanError(
                    f"job.{key} {what}, and only a dedicated top can add more sums later",
                    f"Take tree.top = 'dedicated' (--top dedicated), or remove job.{key}",
                )
    scheme = plan.transport.url.partition("://")[0]
    can = None if scheme == "auto" else registry.can(scheme)
    if can is not None and (can.broker or can.in_process):
        raise PlanError(
            f"each node of a tree listens for clients, and with {scheme} only the server can listen",
            "Take another transport, such as tcp, or --nodes 1",
        )


def _middle(plan: Plan, nodes: NodesSection, levels: list[int]) -> None:
    """Refuse the middle nodes of a plan if they are impossible."""
    if plan.tree is not None and plan.tree.tag is not None:
        raise PlanError(
            "tree.tag and nodes.middle both say which middle nodes there are",
            "Remove nodes.middle: each level of aggregators of the schema gets its middle nodes",
        )
    for below, above in pairwise([nodes.count, *levels]):
        if above > below:
            raise PlanError(
                f"nodes.middle has {above} middle nodes on a level with {below} nodes below it, and each needs one",
                "Give no more on a level than on the level below it, which for the first are nodes.count",
            )
    check_middle_nodes(plan, "nodes.middle asks for middle nodes", "remove nodes.middle")


def check_middle_nodes(plan: Plan, why: str, instead: str) -> None:
    """Refuse middle nodes if the plan's other settings do not allow them. Raises PlanError.

    ``why`` says what asks for them, and ``instead`` how to do without them.
    """
    if (plan.tree or TreeSection()).top != "dedicated":
        raise PlanError(
            f"{why}, and only a dedicated top takes their sums",
            f"Take tree.top = 'dedicated' (--top dedicated), or {instead}",
        )
    if plan.job.goal is not None:
        raise PlanError(
            f"{why}, and with job.goal the root admits each update at the node that has it, which it cannot reach",
            f"Remove job.goal, or {instead}",
        )
    if plan.nodes is not None and plan.nodes.engine == "ray":
        raise PlanError(f"{why}, and Ray starts only nodes that have clients", f"Take --engine local, or {instead}")


def _switches(tree: TreeSection) -> None:
    system = switches(tree)
    if system["scaling"] == "knative" and split(tree) == "ranges":
        raise PlanError(
            "an autoscaler starts and ends leaves, and with tree.split = 'ranges' a node needs all its workers",
            "Take tree.split = 'clients' (--split clients), or tree.scaling = 'fixed'",
        )
