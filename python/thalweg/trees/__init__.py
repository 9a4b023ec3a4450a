"""Aggregation trees: gets the decisions of the core's control plane for a plan, and simulates them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from thalweg import _core, models, wire
from thalweg.errors import PlanError
from thalweg.plan.systems import split, switches
from thalweg.sections.trees import NodesSection, TreeSection
from thalweg.trees import tags
from thalweg.wire import Table

if TYPE_CHECKING:
    from thalweg.plan import Plan

__all__ = ["placed", "planned", "scenario", "simulated"]

# One update in the control plane's unit, thousandths of an update: it decides in integers.
UPDATE: Final = 1000
# Keys of [tree] that set policies of the control plane.
POLICIES: Final = ("keep", "top", "inputs", "every", "silence")


def scenario(plan: Plan, update_bytes: int | None = None) -> dict[str, Any]:
    """Return a plan's scenario for the core. Raises PlanError or ModelError for an impossible plan.

    ``update_bytes`` is the size of an update if it is known; else it follows from the plan's model.
    """
    if plan.app is not None and update_bytes is None:
        raise PlanError(
            f"the size of an update of {plan.app.object} is known only when it runs",
            "Name a model of the same size: model.name = 'payload:SIZE'",
        )
    tree, nodes = plan.tree or TreeSection(), plan.nodes or NodesSection()
    if tree.goal is not None and tree.goal > plan.participants:
        raise PlanError(
            f"tree.goal is {tree.goal}, and {plan.participants} clients take part", "Make it at most that many"
        )
    groups = tags.groups(tree, nodes)
    size = update_bytes or plan.payload or models.find(plan.model.name).layout_bytes
    told = {
        "nodes": [_node(nodes, place, groups) for place in range(nodes.count)],
        "clients": plan.participants,
        "groups": list(range(len(groups.clients))),
        "goal": tree.goal,
        "bytes": size,
        "rounds": plan.job.rounds,
        "between": tree.between,
        "spread": tree.spread,
        "seed": plan.job.seed,
        "config": {key: getattr(tree, key) for key in POLICIES}
        | {"split": split(tree), "workers": tree.workers or 1, "history": round(tree.history * 1000)},
        "switches": switches(tree),
    }
    own = {"costs": tree.costs, "autoscaler": tree.autoscaler}
    return told | {key: section.model_dump(exclude_none=True) for key, section in own.items() if section is not None}


@dataclass(frozen=True)
class Reason:
    """Why the control plane decided something."""

    text: str


@dataclass(frozen=True)
class Homes:
    """The index of each client's node; None for a client without one."""

    homes: tuple[int | None, ...]


@dataclass(frozen=True)
class Decision:
    """The control plane's first decisions, and their reasons."""

    plan: Homes
    reasons: tuple[Reason, ...]

    @property
    def homes(self) -> tuple[int | None, ...]:
        """The index of each client's node; None for a client without one."""
        return self.plan.homes


def placed(scenario: Table) -> Decision:
    """Return the control plane's first decisions for a scenario."""
    return wire.decode(Decision, _core.tree_plan(wire.encode(scenario)))


def planned(plan: Plan) -> dict[str, Any]:
    """Return the control plane's first decisions for a plan, with their reasons."""
    told = scenario(plan)
    found = json.loads(_core.tree_plan(json.dumps(told)))
    homes = found["plan"].pop("homes")
    routes = (plan.tree or TreeSection()).routes
    decided = {"plan": found["plan"], "homeless": homes.count(None), "reasons": found["reasons"]}
    return {**_named(plan, told), "routes": routes, **decided}


def simulated(plan: Plan, met: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the result of each round in virtual time.

    ``met`` are comparisons of live runs with the simulator (``report.replay``). The simulated times count as accepted
    if the simulator met all of these runs, and one run has the plan's system and split. Costs that the plan does not
    give are taken from the last such run.
    """
    told = scenario(plan)
    alike = [one for one in met if (one["system"], one["split"]) == (_system(plan), told["config"]["split"])]
    if alike:
        told["costs"] = {**alike[-1]["costs"], **told.get("costs", {})}
    rounds = json.loads(_core.tree_simulate(json.dumps(told)))
    accepted = bool(alike) and all(one["met"] for one in met)
    return {**_named(plan, told), "simulated": True, "accepted": accepted, "met": list(met), "rounds": rounds}


def _system(plan: Plan) -> str:
    return (plan.tree or TreeSection()).system


def _named(plan: Plan, told: dict[str, Any]) -> dict[str, Any]:
    """Return the plan's facts that head a result: its system, sizes, switches and configuration."""
    keys = ("clients", "goal", "switches", "config")
    return {
        "system": _system(plan),
        "update_bytes": told["bytes"],
        "nodes": len(told["nodes"]),
        **{k: told[k] for k in keys},
    }


def _node(nodes: NodesSection, place: int, groups: tags.Groups) -> dict[str, Any]:
    return {
        "capacity": nodes.capacity * UPDATE,
        "cores": nodes.cores,
        "rate": nodes.link or 0,
        "ingress": nodes.client_link,
        "group": groups.of_node(place),
    }
