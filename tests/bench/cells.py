"""Generated runs: records with known numbers, in the places where bench workers write theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.report.records import make
from thalweg.bench import BenchPlan, Matrix
from thalweg.bench.driver import Bench
from thalweg.bench.folder import Folder
from thalweg.bench.process import Failure
from thalweg.bench.systems import System
from thalweg.plan import Plan

AXES = {"transport": ["tcp", "memory"]}


class Quiet:
    """A progress display that stores its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.closed = False

    def note(self, text: str) -> None:
        self.lines.append(text)

    def begin(self, done: int, total: int, what: str, left: str) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class Fake:
    """A fake worker process. ``fail``: seeds and URL schemes of runs that fail; ``stop``: the runs until Ctrl-C."""

    def __init__(self, *, fail: tuple[tuple[str, int], ...] = (), stop: int | None = None) -> None:
        self.fail = fail
        self.stop = stop
        self.ran: list[tuple[str, int]] = []

    def __call__(self, path: Path, log: Path, limit: float | None, system: System | None) -> Failure | None:
        plan = Plan.load(path)
        log.write_text("said\n")
        make(
            Path(plan.record.folder) / "a-record",
            rounds=2,
            plan=plan.model_dump(exclude_none=True, include={"transport"}),
        )
        if self.stop is not None and len(self.ran) == self.stop:
            raise KeyboardInterrupt
        self.ran.append((plan.scheme, plan.job.seed))
        if self.ran[-1] in self.fail:
            return Failure("it broke", "Fix it")
        return None


def bench(folder: Path, **settings: Any) -> Bench:
    """Return a bench in a new folder."""
    plan = BenchPlan.of({"matrix": AXES, "repetitions": 2, **settings})
    return Bench(Folder.create(folder, "name", plan), Matrix.of(plan))


def again(bench: Bench) -> Bench:
    """Return the same bench as another process would find it."""
    folder = Folder(bench.folder.path)
    return Bench(folder, Matrix.of(folder.plan()))
