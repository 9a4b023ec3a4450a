"""``thalweg export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thalweg.cli.output import Json, output


def command(
    record: Annotated[Path, typer.Argument(help="Folder of a run's record.")],
    *,
    form: Annotated[
        str, typer.Option("--format", help="csv, json, pickle (FedComm's result file, written only) or parquet.")
    ] = "csv",
    to: Annotated[Path | None, typer.Option("--output", help="Folder (csv, parquet) or file (json, pickle).")] = None,
    as_json: Json = False,
) -> None:
    """Write a record in another format."""
    with output(as_json=as_json) as emit:
        from thalweg.record import Record
        from thalweg.record.export import export

        paths = export(Record(record), form, to)
        emit({"files": [str(path) for path in paths]})
    if not as_json:
        for path in paths:
            typer.echo(path)
