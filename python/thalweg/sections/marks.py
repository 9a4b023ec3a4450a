"""Marks at a plan's key: the name of its type, its option of the core, its options on the command line, its source.

Together with its type, default and description they are the only definition of a key. The check of a plan, the core's
options (``thalweg.plan.options``), the command line (``thalweg.cli.plans``) and the reference (scripts/docs_tables.py)
are made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class Words:
    """How the reference names a key's type."""

    kind: str


@dataclass(frozen=True)
class Core:
    """The option of the core that a key sets.

    ``path`` is the option, such as ``transport.streams``; without it, the key's own name. Servers get the option;
    clients get it too if ``client`` is true. ``write`` converts the plan's value to the core's.
    """

    path: str | None = None
    client: bool = False
    write: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class Option:
    """A command-line option that sets a key; a key may have several.

    ``name`` is the option without ``--``; without it, the key's own name. ``of`` lists the commands. ``help`` replaces
    the key's description.
    """

    name: str | None = None
    of: tuple[str, ...] = ("run",)
    metavar: str | None = None
    help: str | None = None


@dataclass(frozen=True)
class Source:
    """The part of a paper that defines a key. The reference names the part, the command line's help does not."""

    text: str


@dataclass(frozen=True)
class Key:
    """A key of a plan: its path as ``transport.gather``, and its field."""

    path: str
    field: FieldInfo

    @property
    def name(self) -> str:
        """The last part of the key's path."""
        return self.path.rpartition(".")[2]

    @property
    def core(self) -> Core | None:
        """The option of the core that the key sets, or None."""
        return next((mark for mark in self.field.metadata if isinstance(mark, Core)), None)

    @property
    def options(self) -> list[Option]:
        """The command-line options that set the key."""
        return [mark for mark in self.field.metadata if isinstance(mark, Option)]


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[Key]:
    """Yield all keys of a plan's model, each section before its keys. Keys of lists of sections are not included."""
    for name, field in model.model_fields.items():
        yield Key(prefix + name, field)
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from keys(kind, f"{prefix}{name}.")
