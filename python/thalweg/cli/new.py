"""``thalweg new``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from thalweg.ui.output import Json, output


def kinds() -> list[str]:
    """Return the kinds of project, for a shell that completes them."""
    from thalweg.starters import KINDS

    return list(KINDS)


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the new project.")],
    *,
    kind: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="KIND",
            help="numpy, torch, sklearn, flower, lora or decentralized.",
            autocompletion=kinds,
        ),
    ] = "numpy",
    as_json: Json = False,
) -> None:
    """Make a project to begin with: an app, a plan, a README and a test.

    It works as it is, without a network.
    """
    with output(as_json=as_json) as emit:
        from thalweg import extras, starters

        files = starters.make(folder, kind)
        needed = starters.NEEDS.get(kind)
        missing = needed is not None and not extras.has(needed)
        emit({"files": [str(path) for path in files]})
    if not as_json:
        for path in files:
            typer.echo(path)
        if needed is not None and missing:
            typer.echo(f"first: {extras.hint(needed)}")
        command = "thalweg flower run ." if kind == "flower" else "thalweg run plan.toml"
        typer.echo(f"now: cd {shlex.quote(str(folder))} && {command}")
