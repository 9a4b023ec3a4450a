"""The command line: one file a subcommand. Nothing heavy is imported until a subcommand runs."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from thalweg.cli import advise, bench, client, doctor, export, lab, pki, run, server, transports, unifl
from thalweg.cli import report as report_command
from thalweg.errors import AppError, ThalwegError
from thalweg.explain import INTERRUPTED, exit_code, explain

__all__ = ["app", "main"]


class Commands(TyperGroup):
    """Subcommands whose errors become two lines on standard error and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.stderr.write("interrupted\n")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            code = report(error)
            if code is None:
                raise
            raise typer.Exit(code) from error


app = typer.Typer(
    name="thalweg",
    cls=Commands,
    help="Finds and runs the fastest path for model updates in federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def report(error: Exception) -> int | None:
    """Print an error that a user can understand, and return its exit code; None for any other."""
    core = sys.modules.get("thalweg._core")
    if isinstance(error, ThalwegError) or (core is not None and isinstance(error, core.CoreError)):
        cause, mend = explain(error)
        code = exit_code(error)
        if isinstance(error, AppError) and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
    elif isinstance(error, ImportError) and "_core" in str(error) and "thalweg" in (error.name or ""):
        cause, mend, code = "the compiled core is not installed", "Run `make setup`, or pip install thalweg", 1
    else:
        return None
    sys.stderr.write(f"error: {cause}\nmend: {mend}\n")
    return code


def _version(wanted: bool) -> None:
    if wanted:
        from thalweg import machine

        build = machine.build()
        typer.echo(f"thalweg {build['version']} ({build.get('commit') or 'no commit'})")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Take the options that come before a subcommand; each acts by its callback."""


app.command("run")(run.command)
app.command("server")(server.command)
app.command("client")(client.command)
app.command("doctor")(doctor.command)
app.command("transports")(transports.command)
app.command("export")(export.command)
app.command("report")(report_command.command)
app.command("bench")(bench.command)
app.command("advise")(advise.command)
app.add_typer(pki.app, name="pki")
app.add_typer(lab.app, name="lab")
app.add_typer(unifl.app, name="unifl")


def main() -> None:
    """Run the program ``thalweg``."""
    app(prog_name="thalweg")
