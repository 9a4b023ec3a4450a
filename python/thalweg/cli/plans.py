"""From a plan file, a record and the command line to the plan that is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from thalweg.plan import Plan

PlanFile: TypeAlias = Annotated[Path | None, typer.Argument(metavar="PLAN.toml", help="Plan; options override it.")]
Clients: TypeAlias = Annotated[int | None, typer.Option(help="Clients expected in each round.")]
Rounds: TypeAlias = Annotated[int | None, typer.Option(help="Rounds of the job.")]
Record: TypeAlias = Annotated[str | None, typer.Option(metavar="DIR", help="Folder that gets the run's record.")]
Resume: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="RECORD", help="Go on from the last checkpoint of a run's record.")
]
AppName: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="MODULE:OBJECT", help="An app of one's own: my_app:App, or path/to/file.py:App."),
]
Tensors: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Tensors that travel: head.*, !head.* or trainable; may be repeated."),
]
DataRoot: TypeAlias = Annotated[str | None, typer.Option(metavar="DIR", help="Folder with the files of the data set.")]

Options: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="What only this transport can be told; may be repeated."),
]
LoginFile: TypeAlias = Annotated[Path | None, typer.Option(help="File with one line user:password, for a broker.")]


def assemble(file: Path | None, resume: Path | None, overrides: Mapping[str, object]) -> Plan:
    """Return the plan: the file's, or the record's that is resumed, or the defaults; with the overrides."""
    from thalweg.plan import Plan

    if file is not None:
        base = Plan.load(file)
    elif resume is not None:
        from thalweg.record import Record

        base = Record(resume).plan
    else:
        base = Plan.of({})
    return base.merge(overrides)
