"""The systems with which aggregation trees are compared: their switches, for the simulator and for runs."""

from __future__ import annotations

from typing import Final, TypedDict, cast

from thalweg import _core, wire
from thalweg.sections.trees import TreeSection

# Keys of [tree] that override the switches of its system.
SWITCHES: Final = ("data_plane", "side_process", "levels", "scaling", "placement", "timing", "reuse", "start")


class Switches(TypedDict):
    """The switches of a system, as the simulator and runs take them."""

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

    Sockets with flat levels is one aggregator, which receives updates itself. No data plane lies between.
    """
    on = switches(tree)
    is_monolith = on["data_plane"] == "sockets" and on["levels"] == "flat"
    return "pool" if is_monolith else on["data_plane"]


def split(tree: TreeSection) -> str:
    """Return how a node's workers divide its updates: by clients for the systems that LIFL is compared with."""
    return tree.split or ("ranges" if tree.system == "lifl" else "clients")


def has_leaves(tree: TreeSection) -> bool:
    """Return whether a node's workers are leaves that fold whole updates."""
    return split(tree) == "clients" and switches(tree)["levels"] == "tree"


def has_plans(tree: TreeSection) -> bool:
    """Return whether a node plans while a job runs how many leaves it has."""
    return has_leaves(tree) and switches(tree)["scaling"] == "hierarchy"


def has_middle(tree: TreeSection) -> bool:
    """Return whether a worker adds up the leaves' sums. Where sums are copied to the node, the node does it."""
    return has_leaves(tree) and data_plane(tree) == "pool" and not switches(tree)["side_process"]
