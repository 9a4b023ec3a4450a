"""Finds the baselines in a plan: methods of papers that the core has only for comparisons with them.

The core has them if it is built with the cargo feature ``baselines`` (``make setup BASELINES=1``). Releases have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from thalweg import _core
from thalweg.errors import PlanError
from thalweg.plan.systems import data_plane, switches
from thalweg.sections.trees import TreeSection

if TYPE_CHECKING:
    from thalweg.plan import Plan

# Options of transports that are baselines: transport, option and value.
OPTIONS: Final = (("rdma", "mode", "fedrdma"), ("rdma", "race", True), ("unifl", "control", "paper"))


def check(plan: Plan, *, has: bool | None = None) -> None:
    """Refuse a plan that chooses a baseline, unless the build ``has`` them (None: ask the core). Raises PlanError."""
    if not (_core.BASELINES if has is None else has) and (baselines := chosen(plan)):
        raise PlanError(
            f"{baselines[0]} is for comparison only, and this build has no baselines",
            "Build the core with them in a checkout of the source: make setup BASELINES=1",
        )


def chosen(plan: Plan) -> list[str]:
    """Return the baselines that a plan chooses, each as a key and its value."""
    own = plan.transport.options or {}
    baselines = [
        f"transport.options.{key} = {_shown(value)}"
        for scheme, key, value in OPTIONS
        if plan.scheme == scheme and own.get(key) == value
    ]
    if plan.repair.policy == "fedcomm-legacy":
        baselines.append("repair.policy = 'fedcomm-legacy'")
    if plan.layers.seal is not None and plan.layers.seal.cipher == "aes-cbc":
        baselines.append("layers.seal.cipher = 'aes-cbc'")
    return baselines + (_of_tree(plan.tree or TreeSection()) if plan.aggregation.shape == "tree" else [])


def _of_tree(tree: TreeSection) -> list[str]:
    plane, side_process = data_plane(tree), switches(tree)["side_process"]
    baselines = [] if plane == "pool" else [f"tree.data_plane = {plane!r}"]
    baselines += ["tree.side_process = true"] if side_process else []
    return [f"{one} (of tree.system = {tree.system!r})" if tree.system != "lifl" else one for one in baselines]


def _shown(value: object) -> str:
    return "true" if value is True else repr(value)
