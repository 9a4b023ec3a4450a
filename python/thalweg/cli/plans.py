"""Makes the plan of a command from a plan file, a record and command-line options.

Each key of a plan carries the options that set it (``thalweg.sections.marks.Option``); ``PlanCommand`` adds these to
the commands that they name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeAlias, get_origin

import typer
from typer.core import TyperCommand

from thalweg.cli import values

if TYPE_CHECKING:
    from thalweg.plan import Plan
    from thalweg.sections.marks import Key, Option

PlanFile: TypeAlias = Annotated[Path | None, typer.Argument(metavar="PLAN.toml", help="Plan; options override it.")]
Resume: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="RECORD", help="Go on from the last checkpoint of a run's record.")
]
Options: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="An option of this transport alone; may be repeated."),
]
_GIVEN: Final = "thalweg.plan"


class PlanCommand(TyperCommand):
    """A command with options for keys of a plan: those whose marks name the command.

    The options are made when this command runs or prints its help, so that other commands need not import plans.
    """

    #: The group that the command is in, as marks of keys name it: ``flower``.
    group: ClassVar[str] = ""

    @property
    def marked(self) -> str:
        """The command's name in the marks of keys, such as ``flower run``."""
        return f"{self.group} {self.name}".lstrip()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. If an option is a key of a plan, but not of this command, the error names the key."""
        try:
            parsed: list[str] = super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)
            path = None if option is None else _key_of(str(option), self.marked)
            if path is None:
                raise
            whose = "the server's plan" if self.marked == "client" else "the plan"
            ctx.fail(f"No such option: {option}. It is {path} in {whose}.")
        return parsed

    def get_params(self, ctx: Any) -> list[Any]:
        own = super().get_params(ctx)
        arguments = [param for param in own if param.param_type_name == "argument"]
        return [*arguments, *_params(self.marked), *(param for param in own if param not in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options below the section of the plan that they set, in the order of the plan."""
        sections = {_name(option, key): key.path.partition(".")[0] for option, key in _options(self.marked)}
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            kind = "Arguments" if param.param_type_name == "argument" else "Options"
            heading = f"[{sections[param.name]}]" if param.name in sections else kind
            if (record := param.get_help_record(ctx)) is not None:
                groups.setdefault(heading, []).append(record)
        for heading, records in groups.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. It gets the values of these options from ``plan_options``."""
        values = {key.path: ctx.params.pop(_name(option, key)) for option, key in _options(self.marked)}
        # An empty list means that a repeatable option was not given.
        ctx.meta[_GIVEN] = {
            path: (list(value) or None) if isinstance(value, (list, tuple)) else value for path, value in values.items()
        }
        return super().invoke(ctx)


def plan_options(context: typer.Context) -> dict[str, Any]:
    """Return the values of plan keys given on the command line, for ``Plan.merge``; None for keys not given."""
    return dict(context.meta[_GIVEN])


def assemble(file: Path | None, resume: Path | None, overrides: Mapping[str, object]) -> Plan:
    """Return the plan of ``file``, else that of the record ``resume``, else the default plan, with the overrides."""
    from thalweg.plan import Plan

    if file is not None:
        base = Plan.load(file, complete=False)
    elif resume is not None:
        from thalweg.record import Record

        base = Record(resume).plan
    else:
        base = Plan.of({})
    return base.merge(overrides)


def _options(command: str) -> Iterator[tuple[Option, Key]]:
    from thalweg.plan import Plan
    from thalweg.sections.marks import keys

    return ((option, key) for key in keys(Plan) for option in key.options if command in option.of)


def _key_of(option: str, command: str) -> str | None:
    """Return the path of the key that ``option`` sets at other commands than ``command``; None if there is none."""
    from thalweg.plan import Plan
    from thalweg.sections.marks import keys

    name = option.lstrip("-").replace("-", "_")
    found = ((mark, key) for key in keys(Plan) for mark in key.options if _name(mark, key) == name)
    return next((key.path for mark, key in found if command not in mark.of), None)


@lru_cache
def _params(command: str) -> list[Any]:
    """Return a command's parameters for keys of a plan. Typer makes them from the signature of a stand-in function."""

    def stand_in(**_: object) -> None:
        """Do nothing: only the signature is used."""

    types = {_name(option, key): Annotated[_type(key) | None, _info(option, key)] for option, key in _options(command)}
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(name, kind, default=None, annotation=annotated) for name, annotated in types.items()
    ]
    stand_in.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    stand_in.__annotations__ = dict(types)
    program = typer.Typer(add_completion=False)
    program.command()(stand_in)
    whole: Any = typer.main.get_command(program)
    return list(whole.params)


def _name(option: Option, key: Key) -> str:
    """Return the name of an option's parameter."""
    return (option.name or key.name).replace("-", "_")


def _info(option: Option, key: Key) -> Any:
    name = _name(option, key).replace("_", "-")
    # A flag that is on by default also gets the option that switches it off.
    flag = f"--{name}/--no-{name}" if key.field.default is True else f"--{name}"
    return typer.Option(
        flag, metavar=option.metavar, help=option.help or _help(key), autocompletion=values.completing(key)
    )


def _is_list(key: Key) -> bool:
    return any(get_origin(kind) is list for kind in values.kinds(key))


def _type(key: Key) -> type:
    """Return the type of a key's option: ``str`` for values that the plan itself parses from text."""
    from pydantic import BeforeValidator

    kinds = values.kinds(key)
    if _is_list(key):
        return list[str]
    if any(isinstance(kind, BeforeValidator) for kind in [*kinds, *key.field.metadata]):
        return str
    return next((kind for kind in kinds if kind in (bool, int, float)), str)


def _help(key: Key) -> str:
    """Return the key's description as a sentence, after the values of a ``Literal``."""
    choices = values.choices(key)
    text = key.field.description or ""
    if choices:
        return f"{', '.join(choices[:-1])} or {choices[-1]}: {text}."
    first = text.partition(" ")[0]
    text = text[0].upper() + text[1:] if first.isalpha() and first.islower() else text
    return f"{text}; may be repeated." if _is_list(key) else f"{text}."
