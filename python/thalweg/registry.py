"""The transports that this build knows, and what each can do."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from thalweg import _core
from thalweg.errors import PlanError


@lru_cache(maxsize=1)
def transports() -> list[dict[str, Any]]:
    """Return the list of ``{"name", "available", "reason", "capabilities", "settings"}``."""
    entries: list[dict[str, Any]] = json.loads(_core.transports())
    return entries


def can(scheme: str) -> dict[str, Any]:
    """Return the capabilities of the transport that addresses with ``scheme`` take. Raises PlanError."""
    for entry in transports():
        if entry["name"] == scheme:
            capabilities: dict[str, Any] = entry["capabilities"]
            return capabilities
    known = ", ".join(entry["name"] for entry in transports())
    raise PlanError(f"unknown transport {scheme!r}", f"Known: {known}")
