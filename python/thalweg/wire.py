"""Messages to and from the core and the package's own processes: JSON on the wire, typed values at both ends.

``thalweg.bounded_json`` reads JSON of peers and records, ``thalweg.ui.strict_json`` writes it for users and records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Value = TypeVar("Value")
# The fields of a message by name, for messages whose fields only the core or the user's app knows.
Table: TypeAlias = Mapping[str, object]
# A parser for each kind of message. Making one takes about a millisecond, so it is kept.
_ADAPTERS: Final[dict[object, TypeAdapter[Any]]] = {}


def encode(value: object) -> str:
    """Return a message as JSON; see ``table_of`` for dataclasses."""
    return json.dumps(value, default=table_of)


def decode(kind: type[Value], text: str | bytes) -> Value:
    """Return the message in a text. ``kind`` is a dataclass, or a type such as ``list[str]``.

    Unknown keys are ignored. Raises ValueError if the text is not JSON, or not of this kind.
    """
    value: Value = _adapter(kind).validate_json(text)
    return value


def made(kind: type[Value], table: object) -> Value:
    """Return the value of this kind whose fields a table has. Raises ValueError, as ``decode`` does."""
    value: Value = _adapter(kind).validate_python(table)
    return value


def plain(text: str | bytes) -> Any:
    """Return a message as JSON's own values, for processes that start too often to import pydantic.

    Raises ValueError if the text is not JSON.
    """
    return json.loads(text)


def table_of(value: object) -> dict[str, object]:
    """Return the table of a value: what its method ``table`` returns, or else the fields of a dataclass by name.

    Raises TypeError for any other value, as the encoder of ``json`` expects.
    """
    table: Callable[[], dict[str, object]] | None = getattr(value, "table", None)
    if table is not None:
        return table()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"a message cannot hold a {type(value).__name__}")


def part(table: Table, key: str) -> Table:
    """Return a table within a table; an empty one if there is none."""
    value = table.get(key)
    return value if isinstance(value, Mapping) else {}


def values_of(value: object) -> Any:
    """Return a message as JSON's own values, the same that ``plain`` would read from its text."""
    if isinstance(value, Mapping):
        return {key: values_of(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [values_of(inner) for inner in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    return values_of(table_of(value))


def sparse(value: Any) -> dict[str, object]:
    """Return the fields of a dataclass by name. A field whose default is None is left out while it is None."""
    named = {one.name: (getattr(value, one.name), one.default) for one in fields(value)}
    return {
        name: field_value
        for name, (field_value, default) in named.items()
        if field_value is not None or default is MISSING
    }


def _adapter(kind: Any) -> TypeAdapter[Any]:
    adapter = _ADAPTERS.get(kind)
    if adapter is None:
        # Imported here, because it takes 0.3 s, and processes that only start a program never read a typed message.
        from pydantic import TypeAdapter

        adapter = _ADAPTERS[kind] = TypeAdapter(kind)
    return adapter
