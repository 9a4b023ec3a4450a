"""Estimates how long runs will take: the network's minimum, plus the time by which past runs exceeded theirs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean

from thalweg.bench.matrix import Cell
from thalweg.flower import sizing
from thalweg.flower.sizing import Size
from thalweg.plan import Plan
from thalweg.plan.least import has_known_links, least_seconds


class _Least:
    """The minimum seconds of each cell. The update size of a Flower app is measured once, and only if it is needed."""

    def __init__(self) -> None:
        self._sizes: dict[str, Size] = {}

    def of(self, plan: Plan) -> float:
        from thalweg.flower.run import is_app

        if not is_app(plan) or plan.app is None or not has_known_links(plan):
            return least_seconds(plan)
        key = json.dumps([plan.app.object, plan.app.options, plan.job.clients], sort_keys=True)
        if key not in self._sizes:
            self._sizes[key] = sizing.ask(plan)
        size = self._sizes[key]
        return least_seconds(plan, size.update_bytes, size.rounds)


class Estimate:
    """Estimates the seconds of future runs. A cell that was run is expected to take its mean time again.

    Any other cell takes its minimum, and the mean excess over the minimum of the cells that were run.
    """

    def __init__(self, cells: Iterable[Cell]) -> None:
        minimum = _Least()
        self._least = {cell.number: minimum.of(cell.plan) for cell in cells}
        self._durations: dict[int, list[float]] = defaultdict(list)

    def took(self, number: int, seconds: float) -> None:
        """Record that a run of a cell took ``seconds``."""
        self._durations[number].append(seconds)

    @property
    def is_measured(self) -> bool:
        """Whether any run has ended."""
        return bool(self._durations)

    def cell(self, number: int) -> float:
        """Return the seconds of a cell's next run; without any measurement the minimum."""
        if number in self._durations:
            return fmean(self._durations[number])
        beyond = [fmean(durations) - self._least[other] for other, durations in self._durations.items()]
        return self._least[number] + (max(0.0, fmean(beyond)) if beyond else 0.0)

    def left(self, runs: Mapping[int, int]) -> float:
        """Return the seconds of all ``runs``: for each cell, the number of its runs."""
        return sum(count * self.cell(number) for number, count in runs.items())
