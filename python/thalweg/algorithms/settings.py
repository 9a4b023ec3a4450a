"""The settings of an algorithm: its keys of ``[algorithm]`` with their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from thalweg.errors import PlanError

# The values of an algorithm's keys of [algorithm]. None: the plan derives the value from other keys.
Settings: TypeAlias = Mapping[str, "float | bool | None"]


def required(settings: Settings, key: str) -> float:
    """Return a setting. Raises PlanError if it has no value."""
    value = settings.get(key)
    if value is None:
        raise PlanError(f"algorithm.{key} has no value", f"Give algorithm.{key}")
    return float(value)
