"""What a job with an aggregation tree cannot have yet, and what only it can: each refused with what to change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from thalweg import apps
from thalweg.errors import PlanError
from thalweg.sections.trees import NodesSection, TreeSection
from thalweg.transports import registry

if TYPE_CHECKING:
    from thalweg.plan import Plan

# Keys of [tree] that a run follows, and values that say what a run does anyway.
LIVE: Final = ("workers", "split", "inputs")
# Those that it follows besides if there are several nodes.
LIVE_NODES: Final = ("placement", "top")
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
    several = plan.nodes is not None and plan.nodes.count > 1
    _keys(plan.tree or TreeSection(), (*LIVE, *LIVE_NODES) if several else LIVE)
    if several:
        _nodes(plan)


def _nodes(plan: Plan) -> None:
    """Refuse several nodes where they cannot be run."""
    nodes, plain = plan.nodes or NodesSection(), NodesSection()
    for key in ("link", "client_link", "groups"):
        if getattr(nodes, key) != getattr(plain, key):
            raise PlanError(
                f"nodes.{key} cannot be run yet", f"Remove it; `thalweg tree simulate` shows what nodes.{key} would do"
            )
    top = (plan.tree or TreeSection()).top
    if top == "sharded":
        raise PlanError(
            "tree.top = 'sharded' cannot be run yet",
            "Take 'first-finished' or 'dedicated'; `thalweg tree simulate` shows what it would do",
        )
    for asked, what, mend in (
        (plan.network is not None, "[network] is of one server", "Remove [network]"),
        (plan.stress is not None, "[stress] is of one server", "Remove [stress]"),
        (plan.job.choose is not None, "job.choose is of one server", "Remove job.choose, so that all take part"),
    ):
        if asked:
            raise PlanError(f"{what}, and trees of several nodes do not follow it yet", f"{mend}, or take --nodes 1")
    scheme = plan.transport.url.partition("://")[0]
    can = {} if scheme == "auto" else registry.can(scheme)
    if can.get("broker") or can.get("in_process"):
        raise PlanError(
            f"each node of a tree listens for clients, and with {scheme} nobody else can listen",
            "Take another transport, such as tcp, or --nodes 1",
        )


def _keys(tree: TreeSection, live: Sequence[str]) -> None:
    plain = TreeSection()
    for key in TreeSection.model_fields:
        value = getattr(tree, key)
        if key not in live and value != getattr(plain, key) and value != DONE.get(key, value is None):
            raise PlanError(
                f"tree.{key} = {value!r} cannot be run yet",
                f"Remove tree.{key}; `thalweg tree simulate` shows what it would do",
            )
