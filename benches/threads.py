"""Runs nodes of a graph in this process, each driven by a thread."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benches.neighbour import LIMIT, name, neighbours
from thalweg import _core


@dataclass
class Driven:
    """A node, its neighbours' names, and the reports of its iterations."""

    core: _core.Node
    neighbours: list[str]
    reports: list[dict[str, Any]] = field(default_factory=list)

    @property
    def weights(self) -> str:
        return json.dumps(dict.fromkeys(self.neighbours, 1 / (len(self.neighbours) + 1)))


def gathered(nodes: int, degree: int, size: int, config: str) -> list[Driven]:
    """Return nodes that are connected to their neighbours, with a model of ``size`` bytes."""
    layout = _core.Layout([("w", "F32", [size // 4])])
    made = [_core.Node(_core.Arena(layout), name(place), "tcp://127.0.0.1:0", config) for place in range(nodes)]
    started = []
    for place, node in enumerate(made):
        near = {name(other): made[other].address for other in neighbours(place, nodes, degree)}
        node.meet(json.dumps(near))
        started.append(Driven(node, list(near)))
    for one in started:
        one.core.gather(len(one.neighbours), LIMIT)
    return started


def iterations(node: Driven, rounds: int | None, train: Callable[[], object] = lambda: None) -> list[float]:
    """Run ``rounds`` iterations, or until ``train`` returns a true value. Returns when each was done."""
    marks: list[float] = []
    number = 1
    while rounds is None or len(marks) < rounds:
        node.core.begin(number, node.weights, None)
        if train():
            break
        report = node.core.wait(node.core.ready(number), LIMIT)
        if report is None:
            raise RuntimeError("a node waited in vain")
        node.reports.append(json.loads(report))
        number = node.reports[-1]["next"]
        marks.append(time.perf_counter())
    return marks


def driven(work: Sequence[Callable[[], list[float]]]) -> list[list[float]]:
    """Do all work at the same time and return the results. Raises RuntimeError if one failed."""
    results: dict[int, list[float]] = {}

    def do(place: int) -> None:
        results[place] = work[place]()

    threads = [threading.Thread(target=do, args=(place,)) for place in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(results) != len(work):
        raise RuntimeError(f"{len(work) - len(results)} nodes failed")
    return [results[place] for place in range(len(work))]
