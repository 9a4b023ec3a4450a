"""The systems that aggregation trees are compared with: their switches, which simulator and runs take alike."""

from __future__ import annotations

import json
from typing import Any, Final

from thalweg import _core
from thalweg.sections.trees import TreeSection

# Keys of [tree] that go over the switches of its system.
SWITCHES: Final = ("data_plane", "side_process", "levels", "scaling", "placement", "timing", "reuse", "start")


def switches(tree: TreeSection) -> dict[str, Any]:
    """Return the switches of a tree's system, with those that the plan gives over them."""
    own = {key: getattr(tree, key) for key in SWITCHES if getattr(tree, key) is not None}
    return {**json.loads(_core.tree_system(tree.system)), **own}


def split(tree: TreeSection) -> str:
    """Return how a node's workers divide its updates: what LIFL is compared with has leaves, as in the paper."""
    return tree.split or ("ranges" if tree.system == "lifl" else "clients")
