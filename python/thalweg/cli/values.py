"""The values that a shell completes for an option of a plan's key. Nothing here runs until a shell asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

if TYPE_CHECKING:
    from thalweg.sections.marks import Key


def kinds(key: Key) -> list[Any]:
    """Return a key's type and the types inside it, outermost first."""
    found = [key.field.annotation]
    for kind in found:
        found += [] if get_origin(kind) is Literal else get_args(kind)
    return found


def choices(key: Key) -> list[str]:
    """Return the words of a key that takes only certain words; an empty list for any other key."""
    return [str(choice) for kind in kinds(key) if get_origin(kind) is Literal for choice in get_args(kind)]


def completing(key: Key) -> Callable[[], list[str]] | None:
    """Return the function that gives an option's values to a shell, or None if the option takes any value."""
    words = choices(key)
    return (lambda: words) if words else NAMED.get(key.path)


def _algorithms() -> list[str]:
    from thalweg.algorithms import ALGORITHMS

    return list(ALGORITHMS)


def _datasets() -> list[str]:
    from thalweg.data import DATASETS

    return list(DATASETS)


def _graphs() -> list[str]:
    from thalweg.graphs.words import PLAIN

    return [*PLAIN, "3-regular", "small-world:4,0.1", "random:0.3"]


def _models() -> list[str]:
    from thalweg.models import MODELS

    return [*MODELS, "payload:8MiB"]


def _networks() -> list[str]:
    from thalweg.network import profiles

    return profiles.names()


def _transports() -> list[str]:
    from thalweg.transports import registry

    return [*(entry.name for entry in registry.transports() if entry.available), "auto"]


def _congestion() -> list[str]:
    from thalweg import machine

    return list(machine.congestion_controls()[1])


# Keys whose values have names that the program knows; they take other values too.
NAMED: Final[Mapping[str, Callable[[], list[str]]]] = {
    "algorithm.name": _algorithms,
    "data.name": _datasets,
    "job.graph": _graphs,
    "model.name": _models,
    "network": _networks,
    "transport.congestion": _congestion,
    "transport.url": _transports,
}
