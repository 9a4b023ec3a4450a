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


def _compressions() -> list[str]:
    return [*_COMPRESSIONS, "powersgd:4"]


def _compressions_down() -> list[str]:
    return list(_COMPRESSIONS)


def _topologies() -> list[str]:
    return ["star", "bottleneck", "dumbbell", "mesh", *_graphs()]


def _partitions() -> list[str]:
    return ["contiguous", "iid", "kshard:4", "dirichlet:0.5"]


def _trackers() -> list[str]:
    from thalweg.sections.tracking import TRACKERS

    return ["tensorboard:logs" if name == "tensorboard" else name for name in TRACKERS]


def roles() -> list[str]:
    """Return the roles of tokens and certificates."""
    from thalweg.transports import pki

    return list(pki.ROLES)


def revocable_roles() -> list[str]:
    """Return the roles in which a party can be revoked."""
    from thalweg.transports import pki

    return list(pki.REVOCABLE)


def _congestion() -> list[str]:
    from thalweg import machine

    return list(machine.congestion_controls()[1])


_COMPRESSIONS: Final = ("int8", "int4", "int2", "topk:0.01")
# Keys whose values have names that the program knows; they take other values too.
NAMED: Final[Mapping[str, Callable[[], list[str]]]] = {
    "algorithm.name": _algorithms,
    "compression.down": _compressions_down,
    "compression.scheme": _compressions,
    "data.name": _datasets,
    "data.partition": _partitions,
    "job.graph": _graphs,
    "model.name": _models,
    "network": _networks,
    "network.topology": _topologies,
    "record.track": _trackers,
    "transport.congestion": _congestion,
    "transport.url": _transports,
}
