"""``thalweg bench``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thalweg import extras
from thalweg.ui.explain import FAILED, SOME_FAILED
from thalweg.ui.output import Json, output
from thalweg.wire import table_of

if TYPE_CHECKING:
    from thalweg.bench.driver import Bench
    from thalweg.bench.values import Preview, Results

File = Annotated[Path | None, typer.Argument(metavar="PLAN.toml", help="Bench plan.")]


def command(
    plan: File = None,
    *,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Continue a bench. Runs that are done are not repeated.")
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="With --resume: repeat failed runs.")] = False,
    repetitions: Annotated[int | None, typer.Option(help="Times that each cell is run; overrides the plan.")] = None,
    folder: Annotated[str | None, typer.Option(metavar="DIR", help="Folder that gets the bench's folder.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the cells and how long they may take, and run nothing.")
    ] = False,
    strict: Annotated[
        bool | None,
        typer.Option("--strict/--no-strict", help="Exit with code 3 if a run failed. Default: only if CI=true."),
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Do not make the page of all records.")] = False,
    as_json: Json = False,
) -> None:
    """Run a matrix of jobs several times by turns, and compare them in one table.

    Each run is a process of its own and leaves a record. A run that fails is kept with its reason.
    """
    with output(as_json=as_json) as emit:
        bench = _bench(plan, resume, repetitions, folder, dry_run=dry_run)
        if dry_run:
            preview = bench.preview()
            emit(preview)
        else:
            results, made = _run(bench, retry=retry, page=not no_report)
            emit({**table_of(results), "report": None if made is None else str(made)})
    if dry_run:
        if not as_json:
            _show_preview(preview)
        return
    if not as_json:
        _show(results, made)
    raise typer.Exit(exit_code(results, strict=is_ci() if strict is None else strict))


def is_ci() -> bool:
    """Return whether this process runs in continuous integration, which sets the variable CI."""
    return os.environ.get("CI", "").lower() in ("true", "1")


def exit_code(results: Results, *, strict: bool) -> int:
    """Return 1 if no run of a bench was completed; 3 if ``strict`` and some runs failed; else 0."""
    if not any(row.repetitions for row in results.cells):
        return FAILED
    return SOME_FAILED if strict and results.failed else 0


def _bench(
    plan: Path | None, resume: Path | None, repetitions: int | None, into: str | None, *, dry_run: bool
) -> Bench:
    from thalweg.bench.driver import Bench
    from thalweg.bench.folder import Folder
    from thalweg.bench.matrix import Matrix
    from thalweg.bench.plan import BenchPlan
    from thalweg.errors import PlanError

    if not dry_run:
        extras.require("thalweg bench", "pyarrow")
    if plan is not None and resume is None:
        chosen = BenchPlan.load(plan).with_repetitions(repetitions)
        matrix = Matrix.of(chosen, str(plan))
        parent = Path(into or chosen.folder)
        return Bench(Folder(parent) if dry_run else Folder.create(parent, plan.stem, chosen), matrix)
    if plan is not None or resume is None:
        raise PlanError("a bench needs its plan, or the folder of one to resume", "Give PLAN.toml, or --resume FOLDER")
    folder = Folder(resume)
    chosen = folder.plan().with_repetitions(repetitions)
    matrix = Matrix.of(chosen, str(resume))
    if not dry_run:
        folder.keep(chosen)
    return Bench(folder, matrix)


def _run(bench: Bench, *, retry: bool, page: bool) -> tuple[Results, Path | None]:
    from thalweg.bench.show import progress_on_stderr
    from thalweg.errors import PlanError, RecordError

    progress = progress_on_stderr()
    progress.note(f"bench: {bench.folder.path}")
    for one in bench.matrix.skipped:
        progress.note(f"cell {one.number} is skipped: {one.reason}")
    try:
        results = bench.run(progress, retry=retry)
    except KeyboardInterrupt:
        progress.note(f"to go on: thalweg bench --resume {bench.folder.path}")
        raise
    made = None
    if page:
        try:
            made = bench.page()
        except (RecordError, PlanError) as error:
            typer.echo(f"no page: {error}", err=True)
    return results, made


def _show(results: Results, page: Path | None) -> None:
    from thalweg.bench.show import answer_lines, tables
    from thalweg.ui import terminal

    for line in answer_lines(results.answers):
        typer.echo(line)
    console = terminal.console()
    for table in tables(results.cells, list(results.axes), results.accounting):
        console.print(table)
    for row in results.cells:
        for reason in row.reasons:
            typer.echo(f"cell {row.cell} {'was skipped' if row.status == 'skipped' else 'failed'}: {reason}")
    folder = results.folder
    typer.echo(f"results: {folder}/bench.json, {folder}/bench.csv")
    if page is not None:
        typer.echo(f"page: {page}")
    typer.echo(f"figures of chosen records: thalweg report {folder}/records/* --figures figures")


def _show_preview(preview: Preview) -> None:
    from thalweg.bench.matrix import label
    from thalweg.bench.show import duration
    from thalweg.ui import terminal

    known = preview.estimate_is_measured or preview.estimate_seconds > 0
    about = "about" if preview.estimate_is_measured else "at least"
    table = terminal.table("cell", "", "runs", f"seconds a run, {about}")
    for row in preview.cells:
        seconds = f"{row.estimate_seconds:.1f}" if row.estimate_seconds else "-"
        table.add_row(str(row.cell), label(row.settings), str(row.runs), seconds)
    terminal.console().print(table)
    for one in preview.skipped:
        typer.echo(f"cell {one.cell} ({label(one.settings)}) is skipped: {one.reason}")
    why = "" if preview.estimate_is_measured else " for the links alone: nothing has been measured yet"
    long = f"{about} {duration(preview.estimate_seconds)}{why}" if known else "nothing has been measured yet"
    typer.echo(f"{preview.runs} runs; {long}")
