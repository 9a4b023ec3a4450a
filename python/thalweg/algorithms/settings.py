"""The settings of algorithms beyond federated averaging, with the default of each algorithm that has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from thalweg.errors import PlanError

# The values of an algorithm's keys of [algorithm]. A value is None if it follows from other keys of the plan.
Settings: TypeAlias = Mapping[str, "float | bool | None"]


def of(settings: Settings, key: str) -> float:
    """Return a setting. Raises PlanError if it has no value."""
    value = settings.get(key)
    if value is None:
        raise PlanError(f"algorithm.{key} has no value", f"Give algorithm.{key}")
    return float(value)
