"""A report of one or more records or traces: a self-contained HTML page, and figures for a paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from thalweg import extras
from thalweg.errors import RecordError
from thalweg.report.numbers import labels, numbers
from thalweg.report.settings import settings
from thalweg.report.source import Run, read_run

if TYPE_CHECKING:
    from thalweg.report.cells import Lost
    from thalweg.report.values import CellNumbers, RunNumbers, TracedLink
    from thalweg.ui.verdict import Verdict

__all__ = ["Report", "read_runs", "report"]


@dataclass(frozen=True, slots=True)
class Report:
    """The files that were written, what was left out and why, and the numbers: sizes in bytes, times in seconds.

    ``verdicts`` are by network, ``left_out`` by the figure's name.
    """

    report: str
    bytes: int
    figures: Sequence[str]
    left_out: Mapping[str, str]
    verdicts: Mapping[str, Verdict]
    notes: Sequence[str]
    cells: Sequence[CellNumbers]
    runs: Sequence[RunNumbers]
    traces: Sequence[TracedLink]

    def table(self) -> dict[str, object]:
        """Return the report as a table for JSON."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return own | {"verdicts": [{"network": condition, **one.table()} for condition, one in self.verdicts.items()]}


def report(records: Sequence[Path], out: Path, figures: Path | None = None, lost: Sequence[Lost] = ()) -> Report:
    """Write the page of ``records`` to ``out`` and, if asked for, figures to the folder ``figures``.

    Files among ``records`` are traces. ``lost`` are runs that failed before they left a record. Returns the written
    files, what was left out and why, the verdicts, the numbers of each cell and run, and those of traced links: sizes
    in bytes, times in seconds. Raises RecordError or PlanError if a record cannot be read, RecordError if a file cannot
    be written, and PackageError without the packages of ``thalweg[report]``.
    """
    from thalweg.report.cells import cells, verdicts, warnings
    from thalweg.report.page import page
    from thalweg.report.traces import read_traces

    if figures is not None:
        extras.require("report --figures", "matplotlib")
    links = [link for path in dict.fromkeys(records) if path.is_file() for link in read_traces(path)]
    runs = read_runs([path for path in records if not path.is_file()])
    words = settings([run.plan for run in runs] + [one.plan for one in lost])
    all_numbers = [numbers(run, setting) for run, setting in zip(runs, words[: len(runs)], strict=True)]
    lost = [replace(one, setting=setting) for one, setting in zip(lost, words[len(runs) :], strict=True)]
    by_cell = cells(all_numbers, lost)
    _write(out, page(runs, all_numbers, lost, links))
    written: list[Path] = []
    left_out: dict[str, str] = {}
    if figures is not None and runs:
        from thalweg.report.figures import draw

        written, left_out = draw(runs, all_numbers, figures)
    return Report(
        report=str(out),
        bytes=out.stat().st_size,
        figures=[str(path) for path in written],
        left_out=left_out,
        verdicts=verdicts(by_cell),
        notes=warnings(by_cell),
        cells=[cell.numbers() for cell in by_cell],
        runs=all_numbers,
        traces=[link.numbers() for link in links],
    )


def read_runs(records: Sequence[Path]) -> list[Run]:
    """Read each record once, and give the runs distinct names."""
    paths = list({path.resolve(): path for path in records}.values())
    runs = [read_run(path) for path in paths]
    return [replace(run, label=label) for run, label in zip(runs, labels(runs), strict=True)]


def _write(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, "utf-8")
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise RecordError(
            f"cannot write the report {path}: {error.strerror}", "Give another place with --out"
        ) from error
