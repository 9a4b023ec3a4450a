"""Reading and writing TOML: what a plan needs of it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from thalweg.errors import PlanError
from thalweg.wire import Table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def loads(text: str, source: str) -> dict[str, Any]:
    """Parse TOML. Raises PlanError that names ``source`` and the place."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, or lists nested too deep
        raise PlanError(f"{source} is not TOML: {error}", "Write keys as name = value below a [section]") from error


def dumps(table: Table) -> str:
    """Write a table of tables and of lists of tables, whose values are bool, int, float, str or lists of these."""
    return "\n".join(_sections((), table)) + "\n"


def _sections(path: tuple[str, ...], table: Table, brackets: str = "[]") -> list[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping) and not _is_tables(value)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    if path and (lines or not table or len(brackets) > 2):
        half = len(brackets) // 2
        lines = [f"{brackets[:half]}{'.'.join(map(_key, path))}{brackets[half:]}", *lines, ""]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += _sections((*path, key), value)
        elif _is_tables(value):
            lines += [line for one in value for line in _sections((*path, key), one, "[[]]")]
    return lines


def _is_tables(value: object) -> TypeGuard[list[Table]]:
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) for one in value)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(key)} = {_value(one)}' for key, one in value.items())}}}"
    raise TypeError(f"{type(value).__name__} has no place in a plan")


def _text(text: str) -> str:
    # A JSON string is a TOML basic string but for DEL, and surrogate pairs, which JSON would escape one by one.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
