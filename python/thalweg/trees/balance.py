"""Moves of a tree's clients away from overloaded nodes while a job runs: the rules of a plan, and the decisions.

The control plane decides (``crates/control/src/balance.rs``), by LIFL section 5.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from thalweg import trees
from thalweg.plan.systems import has_load, has_moves, switches
from thalweg.sections.trees import NodesSection, TreeSection
from thalweg.trees import middles, tags
from thalweg.ui.phrases import FEW, number_of

if TYPE_CHECKING:
    from thalweg.plan import Plan

# Number of a node's latest measurements that must all show an overload. The node's own planner holds leaves as long.
STEADY: Final = 3
# What stands for the root in rows of the record that have a node's name otherwise.
ROOT: Final = "root"


@dataclass(frozen=True)
class Rules:
    """How clients move. ``capacity`` is that of each node, in thousandths of an update; ``every`` is in seconds.

    ``groups`` has the only group that a node serves, by the node's name; a node without a group serves all.
    """

    placement: str
    history: int
    every: float
    capacity: int
    groups: Mapping[str, int | None]

    def config(self) -> dict[str, object]:
        """Return what the core's ``TreeBalancer`` is made of."""
        return {"placement": self.placement, "history": self.history, "steady": STEADY}


def rules(plan: Plan) -> Rules | None:
    """Return how clients of a plan's nodes move on load; None if they stay.

    They stay with one node, below middle nodes, and where an autoscaler decides, because nodes do not measure their
    load then.
    """
    tree, nodes = plan.tree or TreeSection(), plan.nodes or NodesSection()
    if not has_moves(plan.nodes) or not has_load(tree, nodes) or middles.parents(plan):
        return None
    groups = tags.groups(tree, nodes)
    return Rules(
        placement=switches(tree)["placement"],
        history=round(tree.history * 1000),
        every=tree.every,
        capacity=nodes.capacity * trees.UPDATE,
        groups={f"node-{place}": groups.of_node(place) for place in range(nodes.count)},
    )


@dataclass(frozen=True)
class Move:
    """A client's move from the node ``source`` to the node ``target``."""

    client: str
    source: str
    target: str


@dataclass(frozen=True)
class Residual:
    """A node's load before the moves of a decision. Loads are in updates.

    - ``clients``: number of its clients.
    - ``capacity``, ``queue``: MC, and the smoothed k * E.
    - ``seconds``: E, smoothed; None if it was not measured yet.
    - ``residual``: RC = MC - k * E; negative if the node is overloaded.
    """

    node: str
    clients: int
    capacity: int | float
    queue: int | float
    seconds: int | float | None
    residual: int | float


@dataclass(frozen=True)
class Balance:
    """A decision which clients move, with what it follows from. ``number`` counts the decisions from 1."""

    number: int
    nodes: tuple[Residual, ...]
    moves: tuple[Move, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class BalanceRow:
    """A row of the record: the decision before a round."""

    round: int
    balance: Balance
    node: str = ROOT


def balance_in_words(balance: Mapping[str, Any]) -> str:
    """Return a line about a decision, which is a ``Balance`` as a table."""
    loads = ", ".join(
        f"{node['node']} {node['queue']:.3g} of {node['capacity']:.3g} ({number_of(node['clients'], 'client')})"
        for node in balance["nodes"]
    )
    return f"balance {balance['number']}: {_moved(balance['moves'])}; {'; '.join(balance['reasons'])}; load: {loads}"


def _moved(moves: Sequence[Mapping[str, str]]) -> str:
    by_way: dict[tuple[str, str], list[str]] = {}
    for move in moves:
        by_way.setdefault((move["source"], move["target"]), []).append(move["client"])
    ways = [f"{_few(clients)} from {source} to {target}" for (source, target), clients in by_way.items()]
    return f"{', '.join(ways)}" if ways else "all clients stay"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:FEW]) + (f" and {len(names) - FEW} more" if len(names) > FEW else "")
