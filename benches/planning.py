"""Rounds during which a node changes its plan of leaves, beside rounds of a node whose leaves are fixed."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any, Final

from benches.common import MIB, Figure, note, workers
from benches.rounds import counters, server
from thalweg import _core, wire
from thalweg.plan import Plan
from thalweg.plan.options import CoreOptions
from thalweg.trees import live

REPETITIONS: Final = 31
CLIENTS: Final = 8
LEAVES: Final = 4
SIZE: Final = 8 * MIB
# Plans without smoothing, so often that each round has some: many leaves while updates arrive, one in between.
RESTLESS: Final = {"every": 0.02, "history": 0, "steady": 1}
# Limit of a round during which a plan changes, in rounds without a change.
LIMIT: Final = 1.2


def planning() -> list[Figure]:
    """Measure rounds of both nodes in turns."""
    note(
        f"rounds of payload:{SIZE // MIB}MiB, {CLIENTS} clients, with plans that change and with {LEAVES} fixed leaves"
    )
    servers = {
        name: server(SIZE, CLIENTS, **options) for name, options in (("fixed", _fixed()), ("planned", _planned()))
    }
    commands = [["thalweg", one.address, f"client-{n}", "1"] for one in servers.values() for n in range(CLIENTS)]
    seconds: dict[str, list[float]] = {name: [] for name in servers}
    changed: list[bool] = []
    with workers(commands):
        for one in servers.values():
            one.wait(CLIENTS, 60.0)
        for number in range(1, REPETITIONS + 2):
            before = _decided(servers["planned"])
            for name, one in servers.items():
                seconds[name].append(_seconds(one, number))
            changed.append(_decided(servers["planned"]) > before)
        counted = counters(servers["planned"])
        for one in servers.values():
            one.close("done")
    pairs = list(zip(seconds["planned"], seconds["fixed"], changed, strict=True))[1:]
    ratios = [planned / fixed for planned, fixed, is_changed in pairs if is_changed]
    middle = statistics.median(ratios) if ratios else None
    details = {"seconds": seconds, "changed": changed, "ratios": ratios, "workers": counted}
    value = "no plan changed" if middle is None else f"{middle:.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
    name = f"{SIZE // MIB} MiB: a round with a change of plan, in rounds of fixed leaves ({len(ratios)} rounds)"
    return [Figure(name, value, f"{LIMIT:g}", middle is not None and middle <= LIMIT, details)]


def _seconds(one: _core.Server, number: int) -> float:
    outcome: dict[str, Any] = wire.plain(one.round(number, "{}", None))
    return float(outcome["seconds"])


def _decided(one: _core.Server) -> int:
    """Return how many plans changed the number of leaves so far, of those that are kept."""
    decisions = counters(one)["decisions"]
    kept = sum(one["before"] != one["leaves"] for one in decisions["latest"])
    return int(decisions["count"] - len(decisions["latest"]) + kept)


def _fixed() -> CoreOptions:
    return _options(scaling="fixed")


def _planned() -> CoreOptions:
    made = _options()
    own = made["workers"]
    return {"workers": replace(own, plans={**(own.plans or {}), **RESTLESS})}


def _options(**tree: Any) -> CoreOptions:
    leaves = {"split": "clients", "workers": LEAVES, **tree}
    return live.options(Plan.of({"aggregation": {"shape": "tree"}, "job": {"clients": CLIENTS}, "tree": leaves}))
