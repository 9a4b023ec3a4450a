"""Parses a network in a line of text, such as ``wifi``, ``rate=100mbit,rtt=40ms,loss=1%`` or ``wan,loss=2%``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from thalweg.errors import PlanError
from thalweg.network.shape import KEYS, REPLACES
from thalweg.sections import explain
from thalweg.sections.network import LinkSection
from thalweg.wire import Table

NONE: Final = "none"
_FLAGS: Final = ("clamp", "keep_order", "down")
_DIRECTIONS: Final = ("up", "down")
_HINT: Final = (
    "Write a profile, keys as rate=100mbit,rtt=40ms,loss=1%, or both as wan,loss=2%; up.rate=5mbit sets one direction"
)
# The keys of a plan's [network] that a profile on the command line replaces.
_REPLACED: Final = frozenset({"profile", "up", "down", *KEYS})


def parse(text: str) -> dict[str, object]:
    """Return the keys of [network] in ``text``. Raises PlanError.

    The first word may be a profile's name. The others are ``key=value``, or ``up.key=value`` and ``down.key=value`` for
    one direction. A range is written ``low..high``.
    """
    table: dict[str, object] = {}
    for number, word in enumerate(part.strip() for part in text.split(",")):
        key, equals, value = (part.strip() for part in word.partition("="))
        if not equals and number == 0 and word and word not in KEYS:
            table["profile"] = word
        elif not equals:
            raise PlanError(f"{text!r}: {word!r} is neither a key with a value nor the profile in front", _HINT)
        else:
            _put(table, text, key, value)
    _check(table, text)
    return table


def parse_shape(text: str) -> dict[str, object]:
    """Return the keys of a change in ``text``, such as ``loss=5%`` or ``wifi``. Raises PlanError.

    Keys of one direction are refused, because a change names its direction beside the link.
    """
    table = parse(text)
    for direction in _DIRECTIONS:
        if isinstance(table.get(direction), dict):
            raise PlanError(f"{text!r} has keys of {direction} alone", "Name the direction beside the link instead")
    return table


def over(table: Table, text: str) -> dict[str, object]:
    """Return a plan's [network] with ``text`` merged into it. Raises PlanError.

    A profile in ``text`` replaces the table's profile and its keys of links. It leaves topology, single clients,
    changes and settings. Without a profile each key replaces the same key, and the keys that it excludes. ``none``
    turns the network off.
    """
    if text.strip() == NONE:
        return {**table, "emulator": "none"}
    override = parse(text)
    if "profile" in override:
        kept = {key: value for key, value in table.items() if key not in _REPLACED}
        return {**kept, **override}
    return _merged(table, override)


def _merged(table: Table, override: Table) -> dict[str, object]:
    """Merge ``override`` into ``table``. A key of both directions replaces the table's keys of one direction."""
    both = {key: value for key, value in override.items() if not isinstance(value, Mapping)}
    merged = {**_without(table, both), **both}
    for direction in _DIRECTIONS:
        old, new = merged.get(direction), override.get(direction)
        if isinstance(old, Mapping) or isinstance(new, Mapping):
            one = new if isinstance(new, Mapping) else {}
            kept = _without(old, {**both, **one}) if isinstance(old, Mapping) else {}
            merged[direction] = {**kept, **one}
    return merged


def _without(table: Table, override: Table) -> dict[str, object]:
    replaced = {other for key in override for other in (key, *REPLACES.get(key, ()))}
    return {key: value for key, value in table.items() if key not in replaced}


def _put(table: dict[str, object], text: str, key: str, value: str) -> None:
    direction, dot, inner = key.partition(".")
    name = inner if dot else key
    if dot and direction not in _DIRECTIONS:
        raise PlanError(f"{text!r}: {direction!r} is no direction", "Write up.KEY or down.KEY")
    target = table.setdefault(direction, {}) if dot else table
    if not isinstance(target, dict) or name in target:
        raise PlanError(f"{text!r} gives {name} twice", "Give it once")
    target[name] = value == "true" if name in _FLAGS and value in ("true", "false") else value


def _check(table: Table, text: str) -> None:
    try:
        LinkSection.model_validate(dict(table))
    except ValidationError as error:
        raise explain.plan_error(error, LinkSection, repr(text)) from None
