"""The systems that a tree can imitate (``tree.system``): the switches that make up each, for simulations and runs."""

from __future__ import annotations

from typing import Final, TypedDict, cast

from thalweg import _core, wire
from thalweg.sections.trees import NodesSection, TreeSection

# Keys of [tree] that override the switches of its system.
SWITCHES: Final = ("data_plane", "side_process", "levels", "scaling", "placement", "timing", "reuse", "start")


class Switches(TypedDict):
    """The switches of a system."""

    data_plane: str
    side_process: bool
    levels: str
    scaling: str
    placement: str
    timing: str
    reuse: bool
    start: str


def switches(tree: TreeSection) -> Switches:
    """Return the switches of a tree's system, with those that the plan overrides."""
    own = {key: getattr(tree, key) for key in SWITCHES if getattr(tree, key) is not None}
    return cast("Switches", {**wire.plain(_core.tree_system(tree.system)), **own})


def data_plane(tree: TreeSection) -> str:
    """Return how updates get to a node's workers.

    With sockets and flat levels there is one aggregator, which receives updates itself. Nothing is copied to it, so the
    result is "pool".
    """
    on = switches(tree)
    is_monolith = on["data_plane"] == "sockets" and on["levels"] == "flat"
    return "pool" if is_monolith else on["data_plane"]


def split(tree: TreeSection) -> str:
    """Return how a node's workers divide its updates. The default is "ranges" for LIFL, and "clients" otherwise."""
    return tree.split or ("ranges" if tree.system == "lifl" else "clients")


def has_leaves(tree: TreeSection) -> bool:
    """Return whether a node's workers are leaves that fold whole updates."""
    return split(tree) == "clients" and switches(tree)["levels"] == "tree"


def has_plans(tree: TreeSection) -> bool:
    """Return whether a node plans its number of leaves while a job runs."""
    return has_leaves(tree) and switches(tree)["scaling"] == "hierarchy"


def has_load(tree: TreeSection, nodes: NodesSection | None) -> bool:
    """Return whether a node measures its load while a job runs: to plan its leaves, or for moves between nodes."""
    return has_plans(tree) or (has_moves(nodes) and switches(tree)["scaling"] != "knative")


def has_moves(nodes: NodesSection | None) -> bool:
    """Return whether clients may move from node to node: there are several, and the plan names no middle nodes.

    A schema may have middle nodes too. Then clients do not move either (``trees.balance.rules``).
    """
    return nodes is not None and nodes.count > 1 and not nodes.middle


def has_middle(tree: TreeSection) -> bool:
    """Return whether a worker adds up the leaves' sums. If sums are copied to the node, the node does it instead."""
    return has_leaves(tree) and data_plane(tree) == "pool" and not switches(tree)["side_process"]
