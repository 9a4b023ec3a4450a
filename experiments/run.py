"""Runs an experiment: each mode as a bench, then the figures, the numbers and the verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from experiments import aggregation, claims, goodput, iterations, load, measured, plots, senders
from experiments.plan import ROOT, Experiment
from thalweg import machine
from thalweg.bench import BenchPlan, Matrix
from thalweg.bench.driver import Bench
from thalweg.bench.folder import Folder
from thalweg.bench.process import execute
from thalweg.bench.show import progress_on_stderr
from thalweg.bench.values import Outcome
from thalweg.report.text import commit_words

OUT: Final = ROOT / "out"
# The file in a bench's folder that names the commit of the code that began the bench.
ORIGIN: Final = "origin.json"
# For each quantity, the function that reads further numbers from the runs' records.
_MORE: Final[Mapping[str, Callable[[Iterable[Outcome], Path], dict[int, measured.Table]]]] = {
    "goodput": goodput.by_cell,
    "iterations": iterations.by_cell,
    "aggregation": aggregation.by_cell,
}


@dataclass(frozen=True)
class Judged:
    """A claim of the paper, and the verdict of each mode."""

    claim: claims.Claim
    verdicts: dict[str, claims.Verdict]


def run(
    name: str,
    scale: str,
    modes: Sequence[str] | None,
    out: Path,
    note: Callable[[str], None],
    *,
    repetitions: int | None = None,
) -> list[Judged]:
    """Run the experiment ``name``. Runs in ``out`` that the same code has completed before are not repeated.

    ``repetitions`` replaces the plan's number of runs of each cell. At the scale whose results are kept, numbers and
    figures are written to the experiment's own folder, and modes that were not run now keep theirs. Returns the paper's
    claims, each with its verdicts. Raises PlanError, RecordError.
    """
    experiment = Experiment.load(name)
    here = out / name / scale
    parts = {}
    origin = {"commit": measured.checkout(), "core": machine.build().commit}
    option = "" if repetitions is None else f" --repetitions {repetitions}"
    for mode in modes or list(experiment.modes):
        note(f"{name}, {scale}, mode {mode}: {experiment.modes[mode].about}")
        matrix = experiment.cells(mode, scale)
        matrix = replace(matrix, plan=matrix.plan.with_repetitions(repetitions))
        command = f"python -m experiments run {name} --scale {scale} --modes {mode}{option}"
        parts[mode] = _bench(experiment, matrix, here / mode, origin, command)
    kept = ROOT / name if scale == experiment.kept else here
    measured.write(kept / measured.FILE, name, scale, parts, list(experiment.modes))
    for file in draw(name, kept / measured.FILE, kept):
        note(f"figure: {file}")
    return judge(name, kept / measured.FILE)


def _bench(
    experiment: Experiment, matrix: Matrix, place: Path, origin: Mapping[str, Any], command: str
) -> measured.Table:
    folder = folder_for(place, matrix.plan, origin)
    way = load.measured(senders.watched(experiment.rivals) if experiment.watch else execute)
    results = Bench(folder, matrix).run(progress_on_stderr(), retry=True, execute=way)
    of_cells = _MORE.get(experiment.quantity)
    more = None if of_cells is None else of_cells(results.runs, folder.path)
    how = {"command": command, "commit": origin["commit"], "load": load.of_folder(folder.cells)}
    return measured.of_bench(results, more, how)


def folder_for(place: Path, plan: BenchPlan, origin: Mapping[str, Any]) -> Folder:
    """Return the folder of a bench that the same code has begun (with any number of repetitions), or a new folder."""
    for path in sorted(place.glob("*/"), reverse=True):
        folder, noted = Folder(path), path / ORIGIN
        same = folder.is_bench and noted.is_file() and json.loads(noted.read_text()) == dict(origin)
        if same and folder.plan().with_repetitions(plan.repetitions) == plan:
            folder.keep(plan)
            return folder
    folder = Folder.create(place, place.name, plan)
    folder.write(ORIGIN, json.dumps(dict(origin)) + "\n")
    return folder


def draw(name: str, numbers: Path, folder: Path) -> list[Path]:
    """Draw the figure of each mode in ``numbers`` to ``folder`` as the experiment's ``plot`` says; return the files."""
    short, experiment = name.rpartition("/")[2], Experiment.load(name)
    origins = measured.origins(numbers)
    drawn = []
    for mode, cells in measured.read(numbers).items():
        if all(cell.numbers["seconds"] is None and not cell.numbers["accuracy"] for cell in cells):
            continue
        title = f"{experiment.source}, mode {mode}"
        core = origins[mode].core
        note = (
            None if origins[mode].is_exact else "commit not known" if core is None else f"commit {commit_words(core)}"
        )
        file = folder / f"{short}-{mode}"
        drawn += plots.draw(experiment.plot, experiment.quantity, cells, title, file, note=note)
    return drawn


def judge(name: str, file: Path) -> list[Judged]:
    """Return the paper's claims with what the numbers in ``file`` show of them."""
    modes = measured.read(file)
    judged = []
    for claim in claims.read(ROOT / name / "expected.json"):
        other = ROOT / name / ".." / str(claim.get("base")) / measured.FILE
        base = measured.read(other) if "base" in claim and other.is_file() else {}
        verdicts = {mode: claims.judge(claim, cells, base.get(mode, [])) for mode, cells in modes.items()}
        judged.append(Judged(claim, verdicts))
    return judged
