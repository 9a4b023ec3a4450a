"""Aggregation trees: gets the decisions of the core's control plane for a plan, and simulates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final, Literal, TypedDict, cast

from thalweg import _core, models, wire
from thalweg.errors import PlanError
from thalweg.plan.systems import Switches, split, switches
from thalweg.sections.trees import NodesSection, TreeSection
from thalweg.trees import tags
from thalweg.wire import Table

if TYPE_CHECKING:
    from thalweg.plan import Plan

__all__ = ["placed", "planned", "scenario", "simulated"]

# One update in the control plane's unit, thousandths of an update: it decides in integers.
UPDATE: Final = 1000


class Costs(TypedDict, total=False):
    """The simulator's costs: rates in bytes a second, and in seconds ``hand_over`` and the starts of workers."""

    fold: int
    sums: int
    hand_over: float
    socket: int
    broker: int
    side: int
    warm_start: float
    cold_start: float
    container_start: float
    finish: int


class Replayed(TypedDict):
    """A run's completion time and the simulator's, in seconds; ``costs_of`` is the record that the costs are from."""

    record: str
    system: str
    split: str
    updates: int
    update_bytes: int
    live_seconds: float
    simulated_seconds: float
    off: float
    met: bool
    costs: Costs
    costs_of: str


@dataclass(frozen=True)
class ScenarioNode:
    """A node of a scenario. ``group`` is the index of the clients' group that it serves; None: it serves all."""

    capacity: int
    cores: int
    rate: int | float
    ingress: int | float | None
    group: int | None


@dataclass(frozen=True)
class Policies:
    """How the control plane decides; the keys of [tree] of these names say what they are."""

    keep: bool
    top: str
    inputs: int
    every: float
    silence: float
    split: str
    workers: int
    # In thousandths of an update.
    history: int


@dataclass(frozen=True)
class Scenario:
    """What the core plans or simulates: the nodes and clients of a tree, and the system's policies and switches.

    ``sums_bytes`` is the size of a node's sums. ``between`` and ``spread`` are seconds. ``costs`` and ``autoscaler``
    are the plan's sections of these names. ``arrivals`` are the seconds at which updates arrive, if they are known.
    """

    nodes: Sequence[ScenarioNode]
    clients: int
    groups: Sequence[int]
    goal: int | None
    bytes: int
    sums_bytes: int
    rounds: int
    between: float | None
    spread: float | None
    seed: int
    config: Policies
    switches: Switches
    costs: Costs | None = None
    autoscaler: Table | None = None
    arrivals: Sequence[float] | None = None

    def table(self) -> dict[str, object]:
        """Return the table that the core reads. Settings that the plan does not have are left out."""
        return wire.sparse(self)


@dataclass(frozen=True)
class Reason:
    """Why the control plane decided something. ``facts`` are the numbers and names in ``text``, by their keys."""

    kind: str
    text: str
    facts: Table

    @classmethod
    def of(cls, table: Table) -> Reason:
        """Return the reason in a table of the core."""
        facts = {key: value for key, value in table.items() if key not in ("kind", "text")}
        return cls(str(table["kind"]), str(table["text"]), facts)

    def table(self) -> dict[str, object]:
        """Return it as the core wrote it."""
        return {"kind": self.kind, "text": self.text, **self.facts}


@dataclass(frozen=True)
class NodeTree:
    """The workers of a node. ``start`` and ``stop``: how many of them start and stop."""

    node: int
    clients: int
    estimate: int
    leaves: int
    middle: bool
    queue: int
    start: int
    stop: int


@dataclass(frozen=True)
class Hierarchy:
    """The control plane's first plan of a tree."""

    lost: tuple[int, ...]
    next: float | None
    planned: bool
    top: Table
    trees: tuple[NodeTree, ...]


@dataclass(frozen=True)
class Homes(Hierarchy):
    """The control plane's first plan of a tree. ``homes``: the index of each client's node, None if it has no node."""

    homes: tuple[int | None, ...]


@dataclass(frozen=True)
class Decision:
    """The control plane's first decisions, and their reasons."""

    plan: Homes
    reasons: tuple[Table, ...]


@dataclass(frozen=True)
class Head:
    """The facts of a plan that a result begins with: its system, sizes, switches and policies."""

    system: str
    update_bytes: int
    nodes: int
    clients: int
    goal: int | None
    switches: Switches
    config: Policies


@dataclass(frozen=True)
class Planned(Head):
    """The control plane's first decisions for a plan, with their reasons (docs/reference/json.md)."""

    routes: str
    plan: Hierarchy
    homeless: int
    reasons: Sequence[Reason]


@dataclass(frozen=True)
class SimulatedRound:
    """A round in virtual time. ``cpu`` is the CPU time of each kind of work. Times are in seconds."""

    round: int
    counted: int
    folded: int
    nodes_used: int
    top: int | None
    completion_seconds: float
    arrival_seconds: float
    spread_seconds: float
    aggregators_created: int
    reused: int
    bytes_between: int
    draws: int
    cpu: Mapping[str, float]
    worker_seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Simulated(Head):
    """The result of each round in virtual time, and of live runs that the simulator was compared with."""

    simulated: Literal[True]
    accepted: bool
    met: Sequence[Replayed]
    rounds: Sequence[SimulatedRound]


def scenario(plan: Plan, update_bytes: int | None = None) -> Scenario:
    """Return a plan's scenario for the core. Raises PlanError or ModelError for an impossible plan.

    ``update_bytes`` is the size of an update if it is known; else it follows from the plan's model.
    """
    if plan.app is not None and update_bytes is None:
        raise PlanError(
            f"the size of an update of {plan.app.object} is known only when it runs",
            "Name a model of the same size: model.name = 'payload:SIZE'",
        )
    tree, nodes = plan.tree or TreeSection(), plan.nodes or NodesSection()
    groups = tags.groups(tree, nodes)
    size = update_bytes or plan.payload or models.find(plan.model.name).layout_bytes
    return Scenario(
        nodes=[_node(nodes, place, groups) for place in range(nodes.count)],
        clients=plan.participants,
        groups=list(range(len(groups.clients))),
        goal=plan.job.goal,
        bytes=size,
        # If elements of updates have 4 bytes, as those of most models: those of sums have as many as the accumulator's.
        sums_bytes=size * (1 if plan.precision == "f32" else 2),
        rounds=plan.job.rounds,
        between=tree.between,
        spread=tree.spread,
        seed=plan.job.seed,
        config=Policies(
            keep=tree.keep,
            top=tree.top,
            inputs=tree.inputs,
            every=tree.every,
            silence=tree.silence,
            split=split(tree),
            workers=tree.workers or 1,
            history=round(tree.history * 1000),
        ),
        switches=switches(tree),
        costs=_costs(tree),
        autoscaler=None if tree.autoscaler is None else tree.autoscaler.model_dump(exclude_none=True),
    )


def _costs(tree: TreeSection) -> Costs | None:
    """Return the costs that a plan names; None if it names none."""
    own = {} if tree.costs is None else tree.costs.model_dump(exclude_none=True)
    if switches(tree)["start"] == "cold" and tree.container_start:
        own["container_start"] = tree.container_start
    return cast("Costs", own) if own else None


def placed(scenario: Scenario) -> Decision:
    """Return the control plane's first decisions for a scenario."""
    return wire.decode(Decision, _core.tree_plan(wire.encode(scenario)))


def planned(plan: Plan) -> Planned:
    """Return the control plane's first decisions for a plan, with their reasons."""
    made = scenario(plan)
    decision = placed(made)
    hierarchy = Hierarchy(**{one.name: getattr(decision.plan, one.name) for one in fields(Hierarchy)})
    return Planned(
        **vars(_head(plan, made)),
        routes=(plan.tree or TreeSection()).routes,
        plan=hierarchy,
        homeless=decision.plan.homes.count(None),
        reasons=list(map(Reason.of, decision.reasons)),
    )


def simulated(plan: Plan, met: Sequence[Replayed] = ()) -> Simulated:
    """Return the result of each round in virtual time.

    ``met`` are comparisons of live runs with the simulator (``report.replay``). The simulated times count as accepted
    if the simulator's times agree with all of these runs, and one of them has the plan's system and split. Costs that
    the plan does not give are taken from the last such run.
    """
    made = scenario(plan)
    alike = [one for one in met if (one["system"], one["split"]) == (_system(plan), made.config.split)]
    if alike:
        made = replace(made, costs={**alike[-1]["costs"], **(made.costs or {})})
    rounds = wire.decode(list[SimulatedRound], _core.tree_simulate(wire.encode(made)))
    accepted = bool(alike) and all(one["met"] for one in met)
    return Simulated(**vars(_head(plan, made)), simulated=True, accepted=accepted, met=list(met), rounds=rounds)


def _system(plan: Plan) -> str:
    return (plan.tree or TreeSection()).system


def _head(plan: Plan, made: Scenario) -> Head:
    return Head(
        system=_system(plan),
        update_bytes=made.bytes,
        nodes=len(made.nodes),
        clients=made.clients,
        goal=made.goal,
        switches=made.switches,
        config=made.config,
    )


def _node(nodes: NodesSection, place: int, groups: tags.Groups) -> ScenarioNode:
    return ScenarioNode(nodes.capacity * UPDATE, nodes.cores, nodes.link or 0, nodes.client_link, groups.of_node(place))
