"""The systems that LIFL is compared with, and how close a node comes to the least time for its updates."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

from benches.common import MIB, Figure, Spread, note, workers
from benches.rounds import counters, server
from thalweg.plan import Plan
from thalweg.plan.options import CoreOptions
from thalweg.trees import live

REPETITIONS = 7
SIZE = 232_000_000
# What is compared for each system: the transfer and the fold of an update, without the start of processes.
WARM = {"start": "always", "scaling": "fixed", "timing": "eager", "workers": 1}
SYSTEMS = {"lifl": None, "sf": 3.5, "sl": 7.0}
# Updates on one node (LIFL's MC), and the limit for a round as a multiple of the least time.
MANY, EACH, MORE = 20, 8 * MIB, 1.10


def node_systems() -> list[Figure]:
    """Measure transfer and fold of an update in each system, and the completion of a full node."""
    note(f"transfer and fold of {SIZE // 10**6} MB: {', '.join(SYSTEMS)}")
    return [*_transfers(), _completion()]


def _options(**tree: Any) -> CoreOptions:
    return live.options(Plan.of({"aggregation": {"shape": "tree"}, "tree": tree}))


def _transfers() -> list[Figure]:
    """Measure all systems with one client and one worker each. Their rounds take turns."""
    servers = {name: server(SIZE, 1, **_options(system=name, split="clients", **WARM)) for name in SYSTEMS}
    with workers([["thalweg", one.address, "client", "1"] for one in servers.values()]):
        for one in servers.values():
            one.wait(1, 60.0)
        for number in range(1, REPETITIONS + 2):
            for one in servers.values():
                one.round(number, "{}", None)
        counts = {name: counters(one) for name, one in servers.items()}
        for one in servers.values():
            one.close("done")
    return [_beside(name, least, counts) for name, least in SYSTEMS.items() if least is not None]


def _beside(name: str, least: float, counts: dict[str, Any]) -> Figure:
    base, folded = counts["lifl"]["fold_us"]["p50"] / 1e3, counts[name]["fold_us"]["p50"] / 1e3
    handed, ratio = counts[name]["handover_us"]["p50"] / 1e3, folded / base
    value = f"{ratio:.2f} times: {folded:.0f} ms ({handed:.0f} the transfer), lifl {base:.0f} ms"
    figure = f"transfer and fold of {SIZE // 10**6} MB by {name}, against lifl"
    details = {key: counts[key] for key in (name, "lifl")}
    return Figure(figure, value, f"{least:g} times", ratio >= least, details)


def _completion() -> Figure:
    """Compare a round of a full node with the least time: the last byte's arrival or the folds, whichever is later."""
    note(f"completion of {MANY} updates of {EACH // MIB} MiB on one node")
    one = server(EACH, MANY, **_options(workers=1))
    least, took = [], []
    with workers([["thalweg", one.address, "client", str(MANY)]]):
        one.wait(MANY, 60.0)
        for number in range(1, REPETITIONS + 2):
            outcome = json.loads(one.round(number, "{}", None))
            ends = [way["receive_end"] for way in outcome["transfers"] if way["direction"] == "up"]
            fold = counters(one)
            each = (fold["fold_us"]["p50"] - fold["handover_us"]["p50"]) / 1e6
            least.append(max(max(ends) - min(ends), MANY * each) + outcome["fold"]["finish_seconds"])
            took.append(outcome["fold"]["completion_seconds"])
        one.close("done")
    ratio = median(a / b for a, b in zip(took[1:], least[1:], strict=True))
    spread, bound = Spread.of(took[1:]), Spread.of(least[1:])
    value = f"{ratio:.2f} times: {spread.text(1e3)} ms, least {bound.text(1e3)} ms"
    name = f"completion of {MANY} updates of {EACH // MIB} MiB, against max(last byte, folds) and finish"
    return Figure(name, value, f"{MORE:g} times", ratio <= MORE, {"took": vars(spread), "least": vars(bound)})
