"""The transports that this build knows, and what each can do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from thalweg import _core
from thalweg.errors import PlanError

_DECIMAL: Final = re.compile(r"[0-9]+(\.[0-9]+)?")


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


def lends(url: str) -> bool:
    """Return whether a peer over ``url`` takes what lies in shared memory without a copy. Raises PlanError."""
    return bool(can(url.partition("://")[0])["lends"])


def own_options(given: Iterable[str]) -> dict[str, bool | int | float | str]:
    """Return a transport's own options from texts ``KEY=VALUE``, by key: true, false, numbers, else text.

    Raises PlanError for what is not of that form.
    """
    words: dict[str, bool] = {"true": True, "false": False}
    found: dict[str, bool | int | float | str] = {}
    for text in given:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not key or not equals:
            raise PlanError(f"{text!r} is no option of a transport", "Write it as KEY=VALUE, as qos=1")
        found[key] = words.get(value, _number(value))
    return found


def _number(text: str) -> int | float | str:
    """Return a text that is a number as one, and any other as it is."""
    if not _DECIMAL.fullmatch(text):
        return text
    return float(text) if "." in text else int(text)
