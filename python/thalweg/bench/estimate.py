"""How long runs will take: what their links need at least, and what runs took beyond that so far."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean

from thalweg import models
from thalweg.bench.matrix import Cell
from thalweg.flower import sizing
from thalweg.flower.sizing import Size
from thalweg.plan import Plan


def update_bytes(plan: Plan) -> int | None:
    """Return the bytes of a plan's update, gaps between tensors included; None if only its model can say."""
    if plan.app is not None or plan.model.tensors is not None:
        return None
    payload = plan.payload
    return models.find(plan.model.name).layout_bytes if payload is None else payload


def least(plan: Plan, size: int | None = None, rounds: int | None = None) -> float:
    """Return the seconds that a job's links need for its updates, and a payload's computation.

    ``size`` is that of an update in bytes, and ``rounds`` are their number, where the plan does not say it. Of a job
    on a graph what its links need is not known, and left out. Raises PlanError if a file that its network names cannot
    be read.
    """
    size, clients = size or update_bytes(plan) or 0, plan.participants
    each = 0.0
    if plan.job.graph is not None:
        each = 0.0
    elif plan.network is not None and plan.network.emulator != "none":
        from thalweg.network import bound
        from thalweg.plan.emulated import network_of

        each = bound.seconds(network_of(plan), size, clients)
    elif plan.layers.throttle is not None:
        each = 2 * size * 8 / plan.layers.throttle
    return (each + (plan.training.compute or 0.0)) * (rounds or plan.job.rounds)


def has_known_links(plan: Plan) -> bool:
    """Whether it is known how fast a plan's links are."""
    emulated = plan.network is not None and plan.network.emulator != "none"
    return emulated or plan.layers.throttle is not None


class _Least:
    """The least seconds of cells; each Flower app among them is asked once how much it sends, where that matters."""

    def __init__(self) -> None:
        self._asked: dict[str, Size] = {}

    def of(self, plan: Plan) -> float:
        from thalweg.flower.run import is_app

        if not is_app(plan) or plan.app is None or not has_known_links(plan):
            return least(plan)
        key = json.dumps([plan.app.object, plan.app.options, plan.job.clients], sort_keys=True)
        if key not in self._asked:
            self._asked[key] = sizing.ask(plan)
        size = self._asked[key]
        return least(plan, size.update_bytes, size.rounds)


class Estimate:
    """Seconds of runs to come. A cell that was run takes as long again; another what runs took beyond their least."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        known = _Least()
        self._least = {cell.number: known.of(cell.plan) for cell in cells}
        self._taken: dict[int, list[float]] = defaultdict(list)

    def took(self, number: int, seconds: float) -> None:
        """Take in that a run of a cell took so long."""
        self._taken[number].append(seconds)

    @property
    def is_measured(self) -> bool:
        """Whether any run has ended."""
        return bool(self._taken)

    def cell(self, number: int) -> float:
        """Return the seconds of a cell's next run; without any measurement the least."""
        if number in self._taken:
            return fmean(self._taken[number])
        beyond = [fmean(taken) - self._least[other] for other, taken in self._taken.items()]
        return self._least[number] + (max(0.0, fmean(beyond)) if beyond else 0.0)

    def left(self, runs: Mapping[int, int]) -> float:
        """Return the seconds of so many runs of each cell."""
        return sum(count * self.cell(number) for number, count in runs.items())
