"""What a job with an aggregation tree cannot have yet, and what only it can: each refused with what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from thalweg import apps
from thalweg.errors import PlanError
from thalweg.sections.trees import TreeSection

if TYPE_CHECKING:
    from thalweg.plan import Plan

# Keys of [tree] that a run follows, and values that say what a run does anyway.
LIVE: Final = ("workers", "split", "inputs")
DONE: Final = {"system": "lifl", "data_plane": "pool", "timing": "eager", "side_process": False, "reuse": True}


def check(plan: Plan) -> None:
    """Refuse a tree that cannot be run. Raises PlanError."""
    if plan.aggregation.shape != "tree":
        for section in ("tree", "nodes"):
            if getattr(plan, section) is not None:
                raise PlanError(
                    f"[{section}] is of aggregation trees, and in this job the server folds updates itself",
                    f"Set aggregation.shape = 'tree' (--aggregation tree), or remove [{section}]",
                )
        return
    if plan.app is not None and plan.app.object.startswith(apps.FLOWER):
        raise PlanError("workers do not fold replies of Flower apps yet", "Remove aggregation.shape")
    if plan.aggregation.partial == "keep":
        raise PlanError(
            "workers fold whole updates, and partial = keep folds what comes on arrival",
            "Take aggregation.partial = 'discard', or remove aggregation.shape",
        )
    if plan.nodes is not None:
        raise PlanError(
            "[nodes] is of trees of several nodes, which cannot be run yet",
            "Remove [nodes]; `thalweg tree simulate` shows what several nodes would do",
        )
    _keys(plan.tree or TreeSection())


def _keys(tree: TreeSection) -> None:
    plain = TreeSection()
    for key in TreeSection.model_fields:
        value = getattr(tree, key)
        if key not in LIVE and value != getattr(plain, key) and value != DONE.get(key, value is None):
            raise PlanError(
                f"tree.{key} = {value!r} cannot be run yet",
                f"Remove tree.{key}; `thalweg tree simulate` shows what it would do",
            )
