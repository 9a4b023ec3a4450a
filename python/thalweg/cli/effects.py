"""Refuses options that a command line gives and that have no effect with its other options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import typer

from thalweg.errors import PlanError


def names_given(context: typer.Context) -> Sequence[str]:
    """Return the names of the parameters that the command line itself gives."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def refuse(name: str, condition: str, remedy: str | None = None) -> NoReturn:
    """Raise PlanError for an option that has no effect under ``condition``, such as "with --mask".

    ``remedy`` is what to do instead of leaving the option out.
    """
    option = f"--{name.replace('_', '-')}"
    hint = f"{remedy}, or leave {option} out" if remedy else f"Leave {option} out"
    raise PlanError(f"{option} has no effect {condition}", hint)
