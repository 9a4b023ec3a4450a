"""Which node of a run's tree is below which middle node."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from thalweg.plan.on_trees import check_middle_nodes, middle_name, nodes_of
from thalweg.sections.trees import NodesSection, TreeSection
from thalweg.trees import tags

if TYPE_CHECKING:
    from thalweg.plan import Plan


def parents(plan: Plan) -> dict[str, str]:
    """Return the middle node above each node that has one, by their names. The root's own nodes are missing.

    Raises PlanError for a schema of Flame whose levels are impossible.
    """
    above: dict[str, str] = {}
    for level, places in enumerate(_levels(plan), 1):
        below = nodes_of(plan) if level == 1 else [middle_name(level - 1, place) for place in range(len(places))]
        above |= {name: middle_name(level, place) for name, place in zip(below, places, strict=True)}
    return above


def _levels(plan: Plan) -> list[list[int]]:
    """Return for each level of middle nodes, from the clients upwards, which one is above each node below it."""
    tree, nodes = plan.tree or TreeSection(), plan.nodes or NodesSection()
    if tree.tag is None:
        return [dealt(below, above) for below, above in pairwise([nodes.count, *(nodes.middle or ())])]
    top, levels = tags.levels_of_middles(tree.tag, tree, nodes)
    if levels:
        why = f"{tree.tag}, line {top.line}: {top.name!r} is {top.level} channels above the clients"
        check_middle_nodes(plan, f"{why}, which needs middle nodes", "remove levels of aggregators from the schema")
    return levels


def dealt(below: int, above: int) -> list[int]:
    """Deal so many nodes to so many middle nodes: in order, and evenly."""
    return [place * above // below for place in range(below)]
