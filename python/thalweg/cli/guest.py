"""``thalweg lab guest``: the kernel in which jobs run in virtual time."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from thalweg.ui.output import Json, output

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The guest kernel, in which jobs run in virtual time."
)


@app.command("build")
def build(*, as_json: Json = False) -> None:
    """Build the guest kernel from Debian's source, unless it is built already. `make guest` does the same."""
    from thalweg.lab.guest import building

    with output(as_json=as_json) as emit:
        built = building.build()
        emit(built)
    if not as_json:
        typer.echo(built.kernel)


@app.command("status")
def status(*, as_json: Json = False) -> None:
    """Print whether the guest kernel is built, and its path."""
    from thalweg.lab.guest import building
    from thalweg.ui.units import format_bytes

    with output(as_json=as_json) as emit:
        kernel = building.status()
        emit(kernel)
    if not as_json:
        size = "not built; run `thalweg lab guest build`" if kernel.bytes is None else format_bytes(kernel.bytes)
        typer.echo(f"{kernel.kernel}: {size}")


@app.command(
    "shell",
    context_settings={"allow_interspersed_args": False},
    epilog="\b\nExamples:\n  thalweg lab guest shell\n  thalweg lab guest shell -- ip -br link",
)
def shell(
    program: Annotated[
        list[str] | None, typer.Argument(metavar="[-- PROGRAM [ARGUMENT]...]", help="What to run; else your shell.")
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Open your shell inside the guest in real time, or run a program there in virtual time.

    The guest sees this machine's files; only the current folder can be written. The exit code is the program's.
    """
    from thalweg.errors import PlanError
    from thalweg.lab import guest

    with output(as_json=as_json) as emit:
        if program:
            code, text = guest.run(program)
        else:
            if as_json or not sys.stdin.isatty():
                raise PlanError("a shell needs a terminal, and no --json", "Name a program: shell -- PROGRAM")
            from thalweg.lab.guest import shell as interactive

            code, text = interactive.shell(os.environ.get("SHELL") or "/bin/bash"), ""
        emit({"command": program, "exit_code": code, "output": text})
    if not as_json:
        typer.echo(text, nl=False)
    raise typer.Exit(code)
