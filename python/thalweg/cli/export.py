"""``thalweg export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thalweg.ui.output import Json, output


def command(
    records: Annotated[list[Path], typer.Argument(metavar="RECORD...", help="Folders of runs' records.")],
    *,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="csv, json, parquet, perfetto (a trace), or pickle (FedComm's result file, written only).",
        ),
    ] = "csv",
    to: Annotated[
        Path | None,
        typer.Option(
            "--output", help="Folder (csv, parquet) or file (json, perfetto, pickle); of several records a folder."
        ),
    ] = None,
    rounds: Annotated[
        list[int] | None, typer.Option("--round", min=1, help="A round of the trace, repeatable; else all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write records in another format."""
    with output(as_json=as_json) as emit:
        from thalweg.record import Record
        from thalweg.record.export import export_all

        paths = export_all([Record(path) for path in records], form, to, rounds=rounds or ())
        emit({"files": [str(path) for path in paths]})
    if not as_json:
        for path in paths:
            typer.echo(path)
