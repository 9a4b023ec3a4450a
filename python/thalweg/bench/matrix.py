"""Makes the cells of a bench plan, each an ordinary plan, and the order in which they are run."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Final

from thalweg.bench import axes, systems
from thalweg.bench.plan import Accounting, BenchPlan
from thalweg.bench.systems import System
from thalweg.errors import DataError, ModelError, PlanError, ThalwegError
from thalweg.plan import Plan, check_transport
from thalweg.transports import registry
from thalweg.wire import Table

MOST: Final = 10_000
LARGEST_SEED: Final = 2**63


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix. ``settings`` has the value of each axis, in words. ``system`` is None for thalweg."""

    number: int
    settings: Mapping[str, str]
    plan: Plan
    system: System | None = None

    @property
    def label(self) -> str:
        """Return the settings of the cell in words."""
        return label(self.settings)

    def in_repetition(self, repetition: int, folder: str) -> Plan:
        """Return the plan of a repetition.

        Within a repetition all cells have the same seed; repetitions have different ones.
        """
        seed = (self.plan.job.seed + repetition - 1) % LARGEST_SEED
        return self.plan.merge({"job.seed": seed, axes.OWN: folder}, f"cell {self.number}")


@dataclass(frozen=True)
class Skipped:
    """A cell of the matrix whose plan is impossible, and why."""

    number: int
    settings: Mapping[str, str]
    reason: str


@dataclass(frozen=True)
class Matrix:
    """All cells of a bench plan. ``runs`` returns the order in which they are run."""

    plan: BenchPlan
    axes: Mapping[str, Sequence[str]]
    cells: Sequence[Cell]
    skipped: Sequence[Skipped]

    @classmethod
    def of(cls, plan: BenchPlan, source: str = "the bench plan") -> Matrix:
        """Return the matrix of a bench plan. Every cell is checked as a plan. Raises PlanError."""
        _check_base(plan, source)
        chosen = axes.axes(plan.matrix, source)
        count = math.prod(len(values) for values in chosen.values())
        if count > MOST:
            raise PlanError(f"{source}: the matrix has {count} cells, more than {MOST}", "Split it, or leave axes out")
        cells: list[Cell] = []
        skipped: list[Skipped] = []
        for number, values in enumerate(itertools.product(*chosen.values()), 1):
            settings = dict(zip(chosen, values, strict=True))
            words = {axis: axes.named(value) for axis, value in settings.items()}
            try:
                made, system = _plan(plan.base, settings)
                words = words if system is None else _of_system(words)
                same = _same(cells, made, system)
                if system is not None and same is not None:
                    reason = f"{system.name} does not use these settings: cell {same} measures the same"
                    skipped.append(Skipped(number, words, reason))
                else:
                    cells.append(Cell(number, words, made, system))
            except (PlanError, ModelError, DataError) as error:
                if plan.impossible == "refuse":
                    raise _refusal(number, words, error, source) from error
                skipped.append(Skipped(number, words, str(error)))
        _check_systems(plan, cells, source)
        if not cells:
            raise PlanError(
                f"{source}: none of its {count} cells can be; cell 1: {skipped[0].reason}",
                "Change the keys that it names, in the base or in the matrix",
            )
        return cls(
            plan, {axis: [axes.named(value) for value in values] for axis, values in chosen.items()}, cells, skipped
        )

    @property
    def accounting(self) -> Accounting:
        """Which time is compared: the plan's choice, or else the one that all systems of the matrix have."""
        if self.plan.accounting is not None:
            return self.plan.accounting
        return "round" if any(cell.system is not None for cell in self.cells) else "measured"

    def runs(self) -> list[tuple[int, Cell]]:
        """Return repetition and cell of each run. A repetition runs all cells in an order drawn from the seed.

        So if the machine becomes slower during the bench, all cells are affected alike.
        """
        order_of_runs = []
        for repetition in range(1, self.plan.repetitions + 1):
            order = list(self.cells)
            random.Random(f"{self.plan.seed}/{repetition}").shuffle(order)
            order_of_runs += [(repetition, cell) for cell in order]
        return order_of_runs


def label(settings: Mapping[str, str]) -> str:
    """Return settings as words."""
    return ", ".join(f"{axis} {value}" for axis, value in settings.items()) or "the plan"


def _check_base(plan: BenchPlan, source: str) -> None:
    record = plan.base.get("record")
    if isinstance(record, Mapping) and "folder" in record:
        raise PlanError(
            f"{source}: [base.record] has folder, but records go to the bench's folder", "Remove it, or give --folder"
        )


def _of_system(words: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of another system's cell in words, without those of thalweg's transport."""
    own = (axes.SYSTEM, axes.CASE)
    return {axis: axes.NOT_ITS if axes.is_way(axis) and axis not in own else word for axis, word in words.items()}


def _same(cells: Sequence[Cell], plan: Plan, system: System | None) -> int | None:
    """Return the number of a cell with the same plan and system, or None."""
    return next((cell.number for cell in cells if cell.system == system and cell.plan == plan), None)


def _check_systems(plan: BenchPlan, cells: Sequence[Cell], source: str) -> None:
    others = [cell.system.name for cell in cells if cell.system is not None]
    if others and plan.accounting in ("measured", "fedcomm"):
        raise PlanError(
            f"{source}: accounting is {plan.accounting!r}, and of {others[0]} only whole rounds are known",
            "Remove it, or take accounting = 'round'",
        )
    if others and plan.limit is None:
        raise PlanError(
            f"{source}: nothing ends a run of {others[0]} in which a party waits for ever",
            "Say how long a run may take: limit = 600.0",
        )


def _plan(base: Table, settings: Table) -> tuple[Plan, System | None]:
    table = deepcopy(dict(base))
    for axis, value in settings.items():
        axes.apply(table, axis, deepcopy(value))
    system = systems.of(table.pop(axes.SYSTEM, systems.OURS))
    if system is not None:
        systems.check(Plan.of(table, "its plan", complete=False), system)
        table = systems.fitted(table)
    made = Plan.of(table, "its plan")
    check_transport(made, registry.transports())
    if made.app is not None:
        from thalweg.flower import run as flower

        if flower.is_app(made):
            flower.check(made)
    return made, system


def _refusal(number: int, settings: Mapping[str, str], error: ThalwegError, source: str) -> PlanError:
    return PlanError(
        f"{source}: cell {number} ({label(settings)}) cannot be: {error.cause}",
        f"{error.hint}. Or leave such cells out with impossible = 'skip'",
    )
