"""Updates folded by worker processes: their hand-over, and rounds beside those of a server that folds by itself."""

from __future__ import annotations

import json
from typing import Any

from benches.common import MIB, Figure, Spread, note, workers
from benches.rounds import server
from thalweg.plan import Plan
from thalweg.trees import live

REPETITIONS = 7
CLIENTS = 4
SIZES = (8 * MIB, 232 * MIB)
# Microseconds from the node's note to the worker that holds the object (LIFL's pool: the same for all sizes).
HAND_OVER = 25.0


def trees() -> list[Figure]:
    """Rounds of a star, of one worker and of two, taking turns."""
    figures = []
    for size in SIZES:
        note(f"rounds of payload:{size // MIB}MiB, {CLIENTS} clients, folded by the server and by workers")
        completions, tree = _turns(size)
        handed = tree["handover_us"]
        value = f"p50 {handed['p50']:.0f} us, p99 {handed['p99']:.0f} us"
        name = f"hand-over of {size // MIB} MiB to a worker, route {tree['routes']}"
        figures.append(Figure(name, value, f"p50 {HAND_OVER:.0f} us", handed["p50"] <= HAND_OVER, tree))
        figures.append(_completion(size, completions))
    return figures


def _turns(size: int) -> tuple[dict[str, Spread], dict[str, Any]]:
    """Return seconds from the first whole update to the mean, and what the one worker did."""
    makers: dict[str, dict[str, Any]] = {"server": {}, "one worker": _workers(1), "two workers": _workers(2)}
    servers = {name: server(size, CLIENTS, **options) for name, options in makers.items()}
    commands = [["thalweg", one.address, f"client-{n}", "1"] for one in servers.values() for n in range(CLIENTS)]
    seconds: dict[str, list[float]] = {name: [] for name in servers}
    with workers(commands):
        for one in servers.values():
            one.wait(CLIENTS, 60.0)
        for number in range(1, REPETITIONS + 2):
            for name, one in servers.items():
                outcome = json.loads(one.round(number, "{}", None))
                seconds[name].append(outcome["fold"]["completion_seconds"])
        tree = live.facts(servers["one worker"].tree(), 0.0)
        for one in servers.values():
            one.close("done")
    return {name: Spread.of(values[1:]) for name, values in seconds.items()}, tree


def _workers(count: int) -> dict[str, Any]:
    return live.options(Plan.of({"aggregation": {"shape": "tree"}, "tree": {"workers": count}}))


def _completion(size: int, completions: dict[str, Spread]) -> Figure:
    value = ", ".join(f"{name} {spread.text(1e3)} ms" for name, spread in completions.items())
    details = {name: vars(spread) for name, spread in completions.items()}
    name = f"from the first whole update of {size // MIB} MiB to the mean of {CLIENTS}"
    return Figure(name, value, "no limit", None, details)
