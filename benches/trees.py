"""Updates folded by worker processes: their hand-over by both routes, and rounds compared with a plain server's."""

from __future__ import annotations

import json
import statistics
from typing import Any, Final

from benches.common import MIB, Figure, Spread, note, workers
from benches.rounds import counters, server
from benches.waking import sleeper
from thalweg import _core
from thalweg.plan import Plan
from thalweg.plan.options import CoreOptions
from thalweg.trees import live

REPETITIONS: Final = 7
CLIENTS: Final = 4
SIZES: Final = (8 * MIB, 232 * MIB)
# Limit in microseconds from the node's descriptor to the worker that holds the object, for any size as in LIFL.
HAND_OVER: Final = 25.0
# The part of a round from the first whole update to the mean, in which workers have work.
LATE: Final = 0.8


def trees() -> list[Figure]:
    """Measure rounds of a star, of one worker by each route, and of two workers. They take turns."""
    figures = []
    routes = ["node", "kernel"] if _kernel() else ["node"]
    for size in SIZES:
        note(f"rounds of payload:{size // MIB}MiB, {CLIENTS} clients, folded by the server and by workers")
        completions, counts, woken = _turns(size, routes)
        figures += [_hand_over(size, counts[route], woken) for route in routes]
        figures.append(_completion(size, completions))
    return figures


def _kernel() -> bool:
    try:
        _core.tree_routes()
    except _core.CoreError as error:
        note(f"no figures of the kernel's route: {error}")
        return False
    return True


def _turns(size: int, routes: list[str]) -> tuple[dict[str, Spread], dict[str, Any], list[float]]:
    """Return seconds from the first whole update to the mean, the report of one worker by each route, and wake-ups.

    Wake-ups are measured, in seconds, during rounds of the server that folds by itself.
    """
    one_of = {f"one worker, {route}": _workers(1, route) for route in routes}
    makers: dict[str, CoreOptions] = {"server": {}, **one_of, "two workers": _workers(2, routes[-1])}
    servers = {name: server(size, CLIENTS, **options) for name, options in makers.items()}
    commands = [["thalweg", one.address, f"client-{n}", "1"] for one in servers.values() for n in range(CLIENTS)]
    seconds: dict[str, list[float]] = {name: [] for name in servers}
    with workers(commands), sleeper() as sleeping:
        for one in servers.values():
            one.wait(CLIENTS, 60.0)
        lasted = 0.0
        for number in range(1, REPETITIONS + 2):
            with sleeping.awoken(lasted * LATE):
                outcome = _round(servers["server"], number)
            lasted = outcome["seconds"]
            seconds["server"].append(outcome["fold"]["completion_seconds"])
            for name in list(makers)[1:]:
                seconds[name].append(_round(servers[name], number)["fold"]["completion_seconds"])
        counts = {route: counters(servers[f"one worker, {route}"]) for route in routes}
        for one in servers.values():
            one.close("done")
    return {name: Spread.of(values[1:]) for name, values in seconds.items()}, counts, sleeping.seconds[1:]


def _round(one: _core.Server, number: int) -> dict[str, Any]:
    outcome: dict[str, Any] = json.loads(one.round(number, "{}", None))
    return outcome


def _workers(count: int, routes: str) -> CoreOptions:
    tree = {"workers": count, "routes": routes}
    return live.options(Plan.of({"aggregation": {"shape": "tree"}, "tree": tree}))


def _hand_over(size: int, tree: dict[str, Any], woken: list[float]) -> Figure:
    handed, least = tree["handover_us"], statistics.median(woken) * 1e6
    value = f"p50 {handed['p50']:.0f} us, p99 {handed['p99']:.0f} us (a byte that wakes a process: p50 {least:.0f} us)"
    name = f"hand-over of {size // MIB} MiB to a worker, route {tree['routes']}"
    return Figure(name, value, f"p50 {HAND_OVER:.0f} us", handed["p50"] <= HAND_OVER, {**tree, "wake_seconds": woken})


def _completion(size: int, completions: dict[str, Spread]) -> Figure:
    value = ", ".join(f"{name} {spread.text(1e3)} ms" for name, spread in completions.items())
    details = {name: vars(spread) for name, spread in completions.items()}
    name = f"from the first whole update of {size // MIB} MiB to the mean of {CLIENTS}"
    return Figure(name, value, "no limit", None, details)
