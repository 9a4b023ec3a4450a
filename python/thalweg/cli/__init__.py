"""The command line: one file a subcommand. Nothing heavy is imported until a subcommand runs."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from thalweg import extras
from thalweg.cli import (
    advise,
    bench,
    client,
    doctor,
    export,
    flower,
    forward,
    lab,
    new,
    node,
    pki,
    run,
    server,
    tree,
)
from thalweg.cli import report as report_command
from thalweg.cli.plans import PlanCommand
from thalweg.errors import AppError, PlanError, ThalwegError
from thalweg.machine.grace import interrupted_code
from thalweg.ui import system
from thalweg.ui.explain import FAILED, Explained, exit_code, explain, explained
from thalweg.ui.output import nobody_reads, print_document

__all__ = ["app", "main"]

# Help is plain text. With Rich there, Typer would write "\\[required]", as Rich's markup needs it.
typer.core.HAS_RICH = False


# The class of errors that typer, or click below it, raises for a command line that it cannot parse. Its module differs
# between releases, so it is looked up among the base classes of BadParameter.
UsageError: Final[Any] = typer.BadParameter.__mro__[1]


CORE: Final = "thalweg._core"
# Commands of earlier releases that were merged into others: old name -> new command.
RENAMED: Final = {"transports": "thalweg doctor --transports", "unifl": "thalweg forward --mask"}


class Commands(TyperGroup):
    """Subcommands that print errors a user can cause as two lines on standard error, without a traceback.

    Each error sets the exit code. With ``--json``, an error in the command line is also a JSON document on standard
    output; ``output`` prints that of all other errors.
    """

    def main(self, *args: Any, **options: Any) -> Any:
        options |= dict(zip(("args", "prog_name"), args, strict=False))
        if not options.pop("standalone_mode", True):
            return super().main(**options, standalone_mode=False)
        arguments = list(sys.argv[1:] if options.get("args") is None else options["args"])
        try:
            check_text(arguments)
            code = super().main(**{**options, "args": arguments}, standalone_mode=False)
        except UsageError as error:
            error.show()
            if wants_json(arguments):
                hint = f"See `{error.ctx.command_path if error.ctx else 'thalweg'} --help`"
                print_document({"error": asdict(Explained(error.format_message(), hint, kind="usage"))})
            code = error.exit_code
        except Exception as error:
            code = report(error)
            if code is None:
                raise
            if isinstance(error, NotTextError) and wants_json(arguments):
                print_document({"error": asdict(explained(error))})
        sys.exit(code if isinstance(code, int) else 0)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in RENAMED:
            ctx.fail(f"`thalweg {args[0]}` is now `{RENAMED[args[0]]}`.")
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **options: Any) -> Any:
        with reporting_signals():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        try:
            with reporting_signals():
                return super().invoke(ctx)
        except typer.Exit:
            raise
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
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@contextmanager
def reporting_signals() -> Iterator[None]:
    """If a signal ends the command, print "interrupted" and exit with the signal's code."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        raise typer.Exit(interrupted_code()) from None


class NotTextError(PlanError):
    """A command-line argument is not UTF-8, so plans, records and pages cannot hold it."""


def check_text(arguments: Sequence[str]) -> None:
    """Raise NotTextError for an argument, such as a path, that is not UTF-8."""
    for argument in _own(arguments):
        if not argument.isascii() and argument.encode(errors="replace") != argument.encode(errors="surrogatepass"):
            raise NotTextError(f"{argument!a} is not UTF-8", "Give the file or folder a name in UTF-8")


def wants_json(arguments: Sequence[str]) -> bool:
    """Return whether a command line has ``--json``."""
    return "--json" in _own(arguments)


def _own(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments before ``--``. Those after it belong to another program."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def report(error: Exception) -> int | None:
    """Print an error that a user can understand, and return its exit code; None for any other."""
    if isinstance(error, BrokenPipeError) and nobody_reads(sys.stdout):
        return FAILED  # as in `thalweg doctor | head -1`, where the reader has closed the pipe
    if isinstance(error, (ThalwegError, *system.ERRORS)) or extras.of_import(error) is not None:
        cause, hint = explain(error)
        code = exit_code(error)
        if isinstance(error, AppError) and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
    elif isinstance(error, ImportError) and _lacks_core(error):
        cause, hint, code = (
            "the compiled core is not installed",
            "Run `make setup`, or install the wheel that `make wheel` makes",
            FAILED,
        )
    else:
        return None
    sys.stderr.write(f"error: {cause}\nhint: {hint}\n")
    return code


def _lacks_core(error: ImportError) -> bool:
    """Return whether an import failed because the compiled core is missing, or cannot be loaded."""
    # For a missing core, `from thalweg import _core` names the package alone.
    return error.name == CORE or (error.name == "thalweg" and find_spec(CORE) is None)


def _version(wanted: bool) -> None:
    if wanted:
        from thalweg import machine

        build = machine.build()
        typer.echo(f"thalweg {build.version} ({build.commit or 'no commit'})")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Take the options that come before a subcommand; each acts by its callback."""


app.command("run", cls=PlanCommand)(run.command)
app.command("new", short_help="Make a project to begin with.")(new.command)
app.command("server", cls=PlanCommand)(server.command)
app.command("client", cls=PlanCommand)(client.command)
app.command("node", cls=PlanCommand, short_help="Be one node of a graph or of an aggregation tree.")(node.command)
app.command("forward", epilog=forward.EXAMPLES, short_help="Carry other programs' TCP over a transport, or mask loss.")(
    forward.command
)
app.command("doctor")(doctor.command)
app.command("export")(export.command)
app.command("report", short_help="Compare records and draw traces, on one HTML page.")(report_command.command)
app.command("bench", short_help="Run a matrix of jobs by turns and compare them.")(bench.command)
app.command("advise")(advise.command)
app.add_typer(pki.app, name="pki")
app.add_typer(lab.app, name="lab")
app.add_typer(flower.app, name="flower")
app.add_typer(tree.app, name="tree")


def main() -> None:
    """Run the program ``thalweg``."""
    app(prog_name="thalweg")
