"""Reads tables of JSON in records. A record may be older than this version, damaged, or from another person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Facts:
    """A table, such as a manifest or a part of it. A value of another type than the one asked for counts as unknown."""

    values: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, value: object) -> Facts:
        """Return the facts in a value; none if it is not a table."""
        return cls(value if isinstance(value, dict) else {})

    def __bool__(self) -> bool:
        return bool(self.values)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def text(self, key: str) -> str | None:
        """Return a text, or None."""
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def whole(self, key: str) -> int | None:
        """Return a whole number, or None."""
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def number(self, key: str) -> float | None:
        """Return a number, or None."""
        value = self.values.get(key)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def is_true(self, key: str) -> bool:
        """Return whether the value is true."""
        return self.values.get(key) is True

    def part(self, key: str) -> Facts:
        """Return the facts in a table within this one."""
        return Facts.of(self.values.get(key))

    def parts(self, key: str) -> list[Facts]:
        """Return the tables in a list; other values in it are left out."""
        return [Facts(value) for value in self.items(key) if isinstance(value, dict)]

    def items(self, key: str) -> list[object]:
        """Return the values of a list; none if it is not a list."""
        value = self.values.get(key)
        return value if isinstance(value, list) else []
