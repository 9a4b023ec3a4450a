"""``thalweg report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thalweg.ui.output import Json, output


def command(
    records: Annotated[
        list[Path], typer.Argument(metavar="RECORD...", help="Folders of runs' records, and files of traces.")
    ],
    *,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for figures for a paper, PNG and SVG.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare records and draw traces on one page that works offline; with --figures also figures for a paper."""
    with output(as_json=as_json) as emit:
        from thalweg.report import report

        made = report(records, out, figures)
        emit(made)
    if not as_json:
        for path in (made.report, *made.figures):
            typer.echo(path)
        for note in made.notes:
            typer.echo(f"note: {note}", err=True)
        for name, why in made.left_out.items():
            typer.echo(f"left out: {name}: {why}", err=True)
