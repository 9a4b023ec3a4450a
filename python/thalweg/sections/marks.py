"""What a key of a plan says of itself besides its values: its type in words, its place in the core, its option.

Together with its type, default and description this is the one definition of a key. The check of a plan, the core's
options (``thalweg.plan.options``), the command line (``thalweg.cli.plans``) and the reference
(scripts/docs_tables.py) follow from it.
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
    """Where the core's options have a key.

    ``path`` as ``transport.streams``, without it the key's own name. A server is told, with ``client`` a client too.
    ``write`` makes the core's value of the plan's.
    """

    path: str | None = None
    client: bool = False
    write: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class Option:
    """An option of commands that sets a key; a key may have several.

    ``name`` is what stands behind ``--``, without it the key's own name; ``of`` are the commands. ``help`` is said
    instead of the key's description.
    """

    name: str | None = None
    of: tuple[str, ...] = ("run",)
    metavar: str | None = None
    help: str | None = None


@dataclass(frozen=True)
class Key:
    """A key of a plan: its path as ``transport.gather``, and its field."""

    path: str
    field: FieldInfo

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition(".")[2]

    @property
    def core(self) -> Core | None:
        """Its place in the core's options, or None."""
        return next((mark for mark in self.field.metadata if isinstance(mark, Core)), None)

    @property
    def options(self) -> list[Option]:
        """The options that set it."""
        return [mark for mark in self.field.metadata if isinstance(mark, Option)]


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[Key]:
    """Yield all keys of a plan's model, each section before what is in it; not those of lists of sections."""
    for name, field in model.model_fields.items():
        yield Key(prefix + name, field)
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from keys(kind, f"{prefix}{name}.")
