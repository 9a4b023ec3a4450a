"""The axes of a matrix: their names, and how a value of each changes a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Final, TypeAlias

from thalweg.errors import PlanError
from thalweg.network import inline
from thalweg.plan import Plan
from thalweg.transports import registry
from thalweg.wire import Table

NONE: Final = "none"
# Key of a table value: the label of the value in tables and plots.
NAME: Final = "name"
# Key of a table value: the value itself, if it is not a table.
IS: Final = "is"
# Short names of axes, each with the plan's key that it sets. They are applied in this order.
SHORT: Final[Mapping[str, str]] = {
    "case": "several sections",
    "system": "a program in place of thalweg",
    "transport": "transport.url",
    "app": "app.object",
    "model": "model.name",
    "network": "network",
    "loss": "network.loss",
    "stress": "stress",
    "congestion": "transport.congestion",
    "fanout": "transport.fanout",
    "gather": "transport.gather",
    "compute": "training.compute",
}
# An axis whose values set keys in several sections of a plan at once.
CASE: Final = "case"
# An axis whose values are thalweg itself, or other systems (``thalweg.bench.systems``).
SYSTEM: Final = "system"
# An axis of this section is part of the way, so its values are compared. Any other axis is part of the condition.
SECTION: Final = "transport."
# What stands in place of a setting of thalweg's transport in a cell of another system.
NOT_ITS: Final = "-"
# The key that the bench itself sets.
OWN: Final = "record.folder"

# A plan as nested tables, in which axes are being set.
PlanTable: TypeAlias = dict[str, object]


def flat(matrix: Table, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the axes of a matrix with their values: ``job.clients`` may be a key in quotes, or a key of a table."""
    for name, values in matrix.items():
        if isinstance(values, Mapping):
            yield from flat(values, f"{prefix}{name}.")
        else:
            yield prefix + name, values


def axes(matrix: Table, source: str) -> dict[str, list[Any]]:
    """Return each axis with its values. Raises PlanError for a wrong name, no values, or two values with one label."""
    axes_by_name: dict[str, list[Any]] = {}
    meant: dict[str, str] = {}
    for name, values in flat(matrix):
        key = SHORT.get(name, name)
        _check_name(name, source)
        if key in meant:
            raise PlanError(f"{source}: [matrix] has both {meant[key]} and {name}, which are one", "Keep one of them")
        if not isinstance(values, list) or not values:
            raise PlanError(f"{source}: {name} in [matrix] is not a list of values", f"Write {name} = [VALUE, ...]")
        called = [named(value) for value in values]
        twice = next((label for at, label in enumerate(called) if label in called[:at]), None)
        if twice is not None:
            raise PlanError(f"{source}: {name} in [matrix] has {twice} twice", "Say it once, or name them apart")
        meant[key] = name
        axes_by_name[name] = values
    order = [name for name in SHORT if name in axes_by_name]
    return {name: axes_by_name[name] for name in (*order, *(name for name in axes_by_name if name not in SHORT))}


def _check_name(name: str, source: str) -> None:
    section = name.partition(".")[0]
    if name == OWN:
        raise PlanError(f"{source}: [matrix] has {name}, but records go to the bench's folder", "Remove it")
    if name not in SHORT and (section not in Plan.model_fields or "." not in name):
        names = [*SHORT, *Plan.model_fields]
        near = get_close_matches(section, names, n=1)
        guess = f"Did you mean {near[0]!r}? " if near else ""
        raise PlanError(
            f"{source}: [matrix] has {name!r}, which is no axis",
            f"{guess}Give a plan's key as job.clients in quotes, or one of {', '.join(SHORT)}",
        )


def apply(table: PlanTable, axis: str, value: Any) -> None:
    """Set an axis to a value in a plan's table. Raises PlanError for an invalid value.

    A system is no key of a plan: the table has it as it stands, for ``thalweg.bench.matrix`` to take out.
    """
    if axis == SYSTEM:
        table[SYSTEM] = value
        return
    if isinstance(value, Mapping):
        plain = {key: one for key, one in value.items() if key != NAME}
        value = plain[IS] if set(plain) == {IS} else plain
    special = _SPECIAL.get(axis)
    if special is None:
        _put(table, SHORT.get(axis, axis), value)
    else:
        special(table, value)


def is_way(axis: str) -> bool:
    """Return whether the values of an axis are compared with each other."""
    return axis in (CASE, SYSTEM) or SHORT.get(axis, axis).startswith(SECTION)


def named(value: Any) -> str:
    """Return the label of an axis's value: the name in its table, or the value as people write it."""
    return str(value[NAME]) if isinstance(value, Mapping) and NAME in value else shown(value)


def shown(value: Any) -> str:
    """Return a value as people write it, on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ",".join(f"{key}={shown(one)}" for key, one in value.items()) or NONE
    return "+".join(map(shown, value)) if isinstance(value, list) else str(value)


def _put(table: PlanTable, path: str, value: Any) -> None:
    *sections, key = path.split(".")
    for section in sections:
        inner = table.get(section)
        # An app may also be written as text, the short form.
        inner = {"object": inner} if section == "app" and isinstance(inner, str) else inner
        # The plan's own check refuses a section that is not a table.
        below: PlanTable = dict(inner) if isinstance(inner, Mapping) else {}
        table[section] = below
        table = below
    table[key] = value


def _transport(table: PlanTable, value: Any) -> None:
    if not isinstance(value, str):
        raise PlanError(
            f"a transport cannot be {value!r}", "Write it as tcp, or with its own options as grpc,mode=unary"
        )
    url, *options = (word.strip() for word in value.split(","))
    _put(table, "transport.url", url)
    for key, chosen in registry.own_options(options).items():
        _put(table, f"transport.options.{key}", chosen)


def _app(table: PlanTable, value: Any) -> None:
    if isinstance(value, Mapping):
        table["app"] = dict(value)
    else:
        _put(table, "app.object", value)


def _case(table: PlanTable, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise PlanError(f"a case cannot be {value!r}", "Write it as a table of a plan's sections, with a name")
    for section, keys in value.items():
        if isinstance(keys, Mapping):
            table[section] = {**_section(table, section), **keys}
        else:
            apply(table, section, keys)


def _network(table: PlanTable, value: Any) -> None:
    if isinstance(value, Mapping):
        table["network"] = dict(value)
    elif not isinstance(value, str):
        raise PlanError(f"a network cannot be {value!r}", f"Write it as --network takes it, as a table, or {NONE!r}")
    elif value.strip() == NONE:
        table.pop("network", None)
    else:
        table["network"] = inline.over(_section(table, "network"), value)


def _loss(table: PlanTable, value: Any) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number and not isinstance(value, str):
        raise PlanError(f"a loss cannot be {value!r}", "Give a fraction as 0.01, or text in percent as '1%'")
    # Without an exponent, because the network parser does not accept one.
    text = format(Decimal(repr(value)), "f") if number else value
    table["network"] = inline.over(_section(table, "network"), f"loss={text}")


def _stress(table: PlanTable, value: Any) -> None:
    if isinstance(value, Mapping):
        stress = dict(value)
    elif isinstance(value, str):
        stress = {} if value.strip() == NONE else dict(_pair(word, value) for word in value.split(","))
    else:
        raise PlanError(f"stress cannot be {value!r}", f"Write it as cpu=99, as a table, or {NONE!r}")
    table.pop("stress", None)
    if stress:
        table["stress"] = stress


def _pair(word: str, text: str) -> tuple[str, Any]:
    key, equals, value = (part.strip() for part in word.partition("="))
    if not equals or not value:
        raise PlanError(
            f"the stress {text!r} has {word!r}", f"Write KEY=VALUE, as cpu=99 or network=250mbit, or {NONE!r}"
        )
    if key == "parties":
        return key, value.split("+")
    try:
        return key, float(value)
    except ValueError:
        return key, value


def _section(table: PlanTable, name: str) -> Table:
    section = table.get(name)
    return section if isinstance(section, Mapping) else {}


_SPECIAL: Final[Mapping[str, Callable[[PlanTable, Any], None]]] = {
    "case": _case,
    "app": _app,
    "transport": _transport,
    "network": _network,
    "loss": _loss,
    "stress": _stress,
}
