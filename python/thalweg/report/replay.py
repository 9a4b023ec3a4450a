"""Replays a run of an aggregation tree in the simulator, to check whether simulated times can be trusted.

The costs come from the record: hand-over and fold of single updates, and the time to make the model. So do the
arrivals, round by round. The simulator's completion time is then compared with the run's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from thalweg import _core, trees
from thalweg.errors import RecordError
from thalweg.record import Record

# A simulated time counts as correct if it differs from the live one by at most this fraction.
MARGIN: Final = 0.15
# The simulator's defaults: bytes a second at which one pass reads updates and sums (decision 0046).
FOLD: Final = 13.1e9
SUMS: Final = 22.5e9


def replayed(folder: Path, others: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return a run's completion time and the simulator's, with the measured costs.

    If no update of a run found an idle worker, the run does not show what an update costs. It then takes the costs of
    one of the ``others`` with the same system and update size. ``others`` are earlier results of this function.

    Raises RecordError if ``folder`` is not a finished run of a tree with one node, or if its costs are unknown.
    """
    record = Record(folder)
    tree, rounds = record.manifest.get("tree"), list(record.rounds())
    whole = [entry for entry in rounds if entry["fold"].get("completion_seconds") is not None]
    if tree is None or not whole:
        raise RecordError(f"{folder} has no rounds of an aggregation tree", "Take a run with --aggregation tree")
    if "nodes" in tree:
        raise RecordError(
            f"{folder} has nodes beside its server: only a run without is played", "Take a run of one node"
        )
    told = trees.scenario(record.plan, int(record.manifest["update_bytes"]))
    paid: Mapping[str, Any] | None
    if tree["fold_us"]["p50"] is None:
        paid = _lent(tree, told, others)
    else:
        paid = {"record": folder.name, "costs": costs(tree, whole, told)}
    if paid is None:
        raise RecordError(
            f"{folder} does not say what an update costs: none found a worker without work",
            "Take a run with fewer clients or more rounds, or give one of the same system and model before it",
        )
    simulated = [_one(told, paid["costs"], entry) for entry in whole]
    ours = median(simulated)
    live = median(entry["fold"]["completion_seconds"] for entry in whole)
    return {
        "record": folder.name,
        "system": tree["system"],
        "split": told["config"]["split"],
        "updates": told["clients"],
        "update_bytes": told["bytes"],
        "live_seconds": live,
        "simulated_seconds": ours,
        "off": ours / live - 1,
        "met": abs(ours / live - 1) <= MARGIN,
        "costs": paid["costs"],
        "costs_of": paid["record"],
    }


def costs(tree: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]], told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the simulator's costs from a run's record. A rate of 0 takes no time."""
    size, on = told["bytes"], told["switches"]
    handed = tree["handover_us"]["p50"] / 1e6
    fold = max(tree["fold_us"]["p50"] / 1e6 - handed, 1e-6)
    slower = fold / (size / FOLD + size / SUMS)
    copied = int(size / handed)
    moved = 0.0 if on["data_plane"] == "pool" else handed
    # The simulator has aggregators above the leaves: a middle if there are several leaves, and a top if no worker
    # becomes the top. In a run of one node the server does their work at the end of the round.
    leaves = tree["workers"] if told["config"]["split"] == "clients" else 1
    middle = 0.0 if leaves == 1 else leaves * (moved + size / (FOLD / slower)) + size / (SUMS / slower)
    top = 0.0 if on["reuse"] else moved + fold
    finish = median(entry["fold"]["finish_seconds"] for entry in rounds) - middle - top
    return {
        "fold": int(FOLD / slower),
        "sums": int(SUMS / slower),
        "hand_over": handed if on["data_plane"] == "pool" else 0.0,
        "socket": copied if on["data_plane"] == "sockets" else 0,
        "broker": copied if on["data_plane"] == "broker" else 0,
        "side": 0,
        "finish": int(size / max(finish, 1e-6)),
    }


def _lent(
    tree: Mapping[str, Any], told: Mapping[str, Any], others: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """Return the result of another run with this system and update size, or None."""
    wanted = (tree["system"], told["bytes"])
    return next((one for one in others if (one["system"], one["update_bytes"]) == wanted), None)


def _one(told: Mapping[str, Any], measured: Mapping[str, Any], entry: Mapping[str, Any]) -> float:
    ends = {
        way["client"]: way["receive_end"]
        for way in entry["transfers"]
        if way["direction"] == "up" and way["receive_end"] is not None
    }
    first = min(ends.values(), default=0.0)
    # Simulate two rounds: the first one starts the workers, as the run had done when its rounds began.
    scenario = {**told, "rounds": 2, "costs": measured, "arrivals": sorted(end - first for end in ends.values())}
    _, outcome = json.loads(_core.tree_simulate(json.dumps(scenario)))
    return float(outcome["completion_seconds"])
