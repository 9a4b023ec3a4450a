"""The transports that this build knows, and what each can do."""

from __future__ import annotations

import json
from collections.abc import Iterable
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


def own_options(given: Iterable[str]) -> dict[str, bool | int | str]:
    """Return a transport's own options from texts ``KEY=VALUE``, by key: true, false, whole numbers, else text.

    Raises PlanError for what is not of that form.
    """
    words: dict[str, bool] = {"true": True, "false": False}
    found: dict[str, bool | int | str] = {}
    for text in given:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not key or not equals:
            raise PlanError(f"{text!r} is no option of a transport", "Write it as KEY=VALUE, as qos=1")
        found[key] = words.get(value, int(value) if value.isdecimal() and value.isascii() else value)
    return found
