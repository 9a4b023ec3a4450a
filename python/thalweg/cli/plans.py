"""From a plan file, a record and the command line to the plan that is run.

The options that set a plan's keys stand at the keys (``thalweg.sections.marks.Option``); ``PlanCommand`` makes them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeAlias, get_args, get_origin

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from thalweg.plan import Plan
    from thalweg.sections.marks import Key, Option

PlanFile: TypeAlias = Annotated[Path | None, typer.Argument(metavar="PLAN.toml", help="Plan; options override it.")]
Resume: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="RECORD", help="Go on from the last checkpoint of a run's record.")
]
Options: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="What only this transport can be told; may be repeated."),
]
_GIVEN: Final = "thalweg.plan"


class PlanCommand(TyperCommand):
    """A command with an option for each key of a plan that says so.

    They are made when the command is looked at, so that others need not wait for all that knows plans.
    """

    #: The group that the command is in, as marks of keys name it: ``flower``.
    group: ClassVar[str] = ""

    @property
    def marked(self) -> str:
        """What marks of keys call the command."""
        return f"{self.group} {self.name}".lstrip()

    def get_params(self, ctx: Any) -> list[Any]:
        own = super().get_params(ctx)
        arguments = [param for param in own if param.param_type_name == "argument"]
        return [*arguments, *_params(self.marked), *(param for param in own if param not in arguments)]

    def invoke(self, ctx: Any) -> Any:
        """Run the command, which gets the values of these options from ``given``."""
        said = {key.path: ctx.params.pop(_name(option, key)) for option, key in _options(self.marked)}
        # What may be repeated is a list; none of it means that nothing was said.
        ctx.meta[_GIVEN] = {
            path: (list(value) or None) if isinstance(value, (list, tuple)) else value for path, value in said.items()
        }
        return super().invoke(ctx)


def given(context: typer.Context) -> dict[str, Any]:
    """Return what the command line says of a plan's keys, as ``Plan.merge`` takes it; None where it says nothing."""
    said: dict[str, Any] = context.meta[_GIVEN]
    return dict(said)


def assemble(file: Path | None, resume: Path | None, overrides: Mapping[str, object]) -> Plan:
    """Return the plan: the file's, or the record's that is resumed, or the defaults; with the overrides."""
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


@lru_cache
def _params(command: str) -> list[Any]:
    """Return the parameters of a command for keys of a plan, made by typer as those of any function."""

    def made(**_: object) -> None:
        """Stand for a function with these parameters."""

    found = {_name(option, key): Annotated[_type(key) | None, _said(option, key)] for option, key in _options(command)}
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind, default=None, annotation=said) for name, said in found.items()]
    made.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    made.__annotations__ = dict(found)
    program = typer.Typer(add_completion=False)
    program.command()(made)
    whole: Any = typer.main.get_command(program)
    return list(whole.params)


def _name(option: Option, key: Key) -> str:
    """Return the name of an option's parameter."""
    return (option.name or key.name).replace("-", "_")


def _said(option: Option, key: Key) -> Any:
    name = _name(option, key).replace("_", "-")
    # What is so by default is switched off.
    flag = f"--{name}/--no-{name}" if key.field.default is True else f"--{name}"
    return typer.Option(flag, metavar=option.metavar, help=option.help or _help(key))


def _kinds(key: Key) -> list[Any]:
    """Return a key's type and what it is made of, outermost first."""
    kinds = [key.field.annotation]
    for kind in kinds:
        kinds += [] if get_origin(kind) is Literal else get_args(kind)
    return kinds


def _is_list(key: Key) -> bool:
    return any(get_origin(kind) is list for kind in _kinds(key))


def _type(key: Key) -> type:
    """Return what the command line takes for a key: text for all that a plan reads from text itself."""
    from pydantic import BeforeValidator

    kinds = _kinds(key)
    if _is_list(key):
        return list[str]
    if any(isinstance(kind, BeforeValidator) for kind in [*kinds, *key.field.metadata]):
        return str
    return next((kind for kind in kinds if kind in (bool, int, float)), str)


def _help(key: Key) -> str:
    """Return the key's description as a sentence, behind the words that it takes."""
    words = [str(word) for kind in _kinds(key) if get_origin(kind) is Literal for word in get_args(kind)]
    text = key.field.description or ""
    if words:
        return f"{', '.join(words[:-1])} or {words[-1]}: {text}."
    first = text.partition(" ")[0]
    text = text[0].upper() + text[1:] if first.isalpha() and first.islower() else text
    return f"{text}; may be repeated." if _is_list(key) else f"{text}."
