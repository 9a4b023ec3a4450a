"""Replays a run of an aggregation tree in the simulator, to check whether simulated times can be trusted.

The costs come from the record: the hand-over and the fold of single updates, and the time to make the model. The
arrivals of updates in each round come from the record too. The simulator's completion time is then compared with the
run's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, TypedDict, cast

from thalweg import _core, trees, wire
from thalweg.errors import RecordError
from thalweg.outcome import Entry, TreeFold, completion_seconds
from thalweg.plan import on_trees
from thalweg.plan.systems import Switches
from thalweg.record import Record
from thalweg.trees import Costs, Replayed, live

if TYPE_CHECKING:
    from typing_extensions import NotRequired

    from thalweg.plan import Plan

# A simulated time counts as correct if it differs from the live one by at most this fraction.
MARGIN: Final = 0.15
# The simulator's defaults: bytes a second at which one pass reads updates and sums (decision 0046).
FOLD: Final = 13.1e9
SUMS: Final = 22.5e9


class Percentiles(TypedDict):
    """The median and the 99th percentile of times in microseconds; None without any."""

    p50: float | None
    p99: float | None


class Work(TypedDict):
    """What the record's manifest has under ``tree``: the work of the workers."""

    system: str
    start_us: Percentiles
    handover_us: Percentiles
    fold_us: Percentiles
    workers: int
    # Missing in records of earlier versions, in which all workers were leaves.
    leaves: NotRequired[int]


class Config(TypedDict):
    """The settings of the control plane that decide what an update costs."""

    split: str


class Scenario(TypedDict):
    """The parts of a plan's scenario for the core that this module reads."""

    bytes: int
    clients: int
    nodes: Sequence[Mapping[str, object]]
    between: float
    switches: Switches
    costs: NotRequired[Costs]
    config: Config


def replayed(folder: Path, others: Sequence[Replayed] = ()) -> Replayed:
    """Return a run's completion time and the simulator's, with the measured costs.

    If no update of a run found an idle worker, the run does not show what an update costs. It then takes the costs of
    one of the ``others`` with the same system and update size. ``others`` are earlier results of this function.

    Of a run with several nodes, only rounds are played in which all clients took part at the nodes where they were
    placed at first.

    Raises RecordError if ``folder`` is not a finished run of a tree, if it has no round that can be played, or if its
    costs are unknown.
    """
    record = Record(folder)
    tree = record.manifest.get("tree")
    whole = [entry for entry in record.rounds() if completion_seconds(entry) is not None]
    if tree is None or not whole:
        raise RecordError(f"{folder} has no rounds of an aggregation tree", "Take a run with --aggregation tree")
    made = trees.scenario(record.plan, int(record.manifest["update_bytes"]))
    scenario = cast("Scenario", wire.values_of(made))
    computing = [seconds for entry in whole if (seconds := entry.get("compute_seconds")) is not None]
    if computing:
        scenario["between"] = median(computing)
    if on_trees.has_nodes(record.plan):
        placed = live.placed(record.plan)
        if placed.below:
            raise RecordError(
                f"{folder} has middle nodes, and the simulator has none",
                "Take a run whose nodes are all below the root",
            )
        whole = _as_placed(placed, whole)
        if not whole:
            raise RecordError(
                f"{folder} has no round in which all clients took part at the nodes where they were placed at first",
                "Take a run without loss, choice of clients or moves",
            )
        # What the record has of arrivals includes the way over clients' links.
        scenario["nodes"] = [{**node, "ingress": None} for node in scenario["nodes"]]
    source: tuple[str, Costs] | None
    if tree["fold_us"]["p50"] is None:
        source = _costs_of(tree, scenario, others)
    else:
        source = folder.name, costs(tree, whole, scenario)
    if source is None:
        raise RecordError(
            f"{folder} does not say what an update costs: none found a worker without work",
            "Take a run with fewer clients or more rounds, or give one of the same system and model before it",
        )
    name, measured = source
    # The times of starts are from this run, also if the other costs are from another one.
    measured = {**measured, **starts(tree, scenario)}
    ours = median(_simulated(scenario, measured, _arrivals(record.plan, entry)) for entry in whole)
    took = median(seconds for entry in whole if (seconds := completion_seconds(entry)) is not None)
    return {
        "record": folder.name,
        "system": tree["system"],
        "split": scenario["config"]["split"],
        "updates": scenario["clients"],
        "update_bytes": scenario["bytes"],
        "live_seconds": took,
        "simulated_seconds": ours,
        "off": ours / took - 1,
        "met": abs(ours / took - 1) <= MARGIN,
        "costs": measured,
        "costs_of": name,
    }


def costs(tree: Work, rounds: Sequence[Entry], scenario: Scenario) -> Costs:
    """Return the simulator's costs from a run's record. A rate of 0 takes no time.

    The record must have the medians of ``tree``.
    """
    size, on = scenario["bytes"], scenario["switches"]
    handed = (tree["handover_us"]["p50"] or 0.0) / 1e6
    fold = max((tree["fold_us"]["p50"] or 0.0) / 1e6 - handed, 1e-6)
    slower = fold / (size / FOLD + size / SUMS)
    copied = int(size / handed)
    moved = 0.0 if on["data_plane"] == "pool" else handed
    # The simulator has aggregators above the leaves: a middle if there are several leaves, and a top if no worker
    # becomes the top. In a run of one node a middle and the server do their work at the end of the round.
    leaves = tree.get("leaves", tree["workers"]) if scenario["config"]["split"] == "clients" else 1
    middle = 0.0 if leaves == 1 else leaves * (moved + size / (FOLD / slower)) + size / (SUMS / slower)
    top = 0.0 if on["reuse"] else moved + fold
    # With several nodes nobody measures the end of a round apart from the way of the sums.
    folds = (entry["fold"] for entry in rounds)
    ends = [fold["finish_seconds"] for fold in folds if fold is not None and "finish_seconds" in fold]
    finish = median(ends) - middle - top if ends else 0.0
    return {
        "fold": int(FOLD / slower),
        "sums": int(SUMS / slower),
        "hand_over": handed if on["data_plane"] == "pool" else 0.0,
        "socket": copied if on["data_plane"] == "sockets" else 0,
        "broker": copied if on["data_plane"] == "broker" else 0,
        "side": 0,
        "finish": int(size / max(finish, 1e-6)) if ends else 0,
    }


def starts(tree: Work, scenario: Scenario) -> Costs:
    """Return what the start of a worker took in a run, the wait for its container apart."""
    waits = (scenario.get("costs") or {}).get("container_start", 0.0)
    start = max(0.0, (tree["start_us"]["p50"] or 0.0) / 1e6 - waits)
    return {"warm_start": start, "cold_start": start, "container_start": waits}


def _costs_of(tree: Work, scenario: Scenario, others: Sequence[Replayed]) -> tuple[str, Costs] | None:
    """Return the record and the costs of another run with this system, split and update size, or None."""
    wanted = (tree["system"], scenario["config"]["split"], scenario["bytes"])
    alike = (one for one in others if (one["system"], one["split"], one["update_bytes"]) == wanted)
    return next(((one["record"], one["costs"]) for one in alike), None)


def _as_placed(placed: live.Placed, rounds: Sequence[Entry]) -> list[Entry]:
    """Return the rounds in which each node counted as many updates as clients were placed there at first."""
    expected = {node: len(clients) for node, clients in placed.clients.items()}

    def counted(entry: Entry) -> dict[str, int]:
        return {part["node"]: part["counted"] for part in cast("TreeFold", entry["fold"])["nodes"] if part["counted"]}

    return [entry for entry in rounds if counted(entry) == expected]


def _arrivals(plan: Plan, entry: Entry) -> list[float]:
    """Return when each client's update was whole, in seconds after the first, in the order of the plan's clients.

    Clients without an update are left out.
    """
    ends = {
        way["client"]: end
        for way in entry["transfers"]
        if way["direction"] == "up" and (end := way["receive_end"]) is not None
    }
    first = min(ends.values(), default=0.0)
    return [ends[client] - first for client in plan.members if client in ends]


def _simulated(scenario: Scenario, measured: Costs, arrivals: Sequence[float]) -> float:
    """Return the simulator's completion time in seconds of a round with these arrivals."""
    # Simulate two rounds: the first one starts the workers, as the run had done when its rounds began.
    played = {**scenario, "rounds": 2, "costs": measured, "arrivals": list(arrivals)}
    _, outcome = wire.plain(_core.tree_simulate(wire.encode(played)))
    return float(outcome["completion_seconds"])
