"""Runs unmodified Flower apps over thalweg's transports.

Flower is an optional dependency: nothing here imports it before ``require`` has found it. Only the module ``compat``
uses internals of Flower.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from thalweg import extras
from thalweg.errors import PlanError

#: The oldest release of Flower that has the modules ``flwr.app``, ``flwr.serverapp`` and ``flwr.clientapp``.
OLDEST: Final = (1, 22)

# Flower reads this when it is imported. A user who wants its telemetry sets the variable to 1.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")


def require() -> str:
    """Return the version of Flower that is installed. Raises PlanError if there is none, or it is too old."""
    get = f"Install it: {extras.hint('flwr')} (its newest releases need Python 3.11)"
    try:
        installed = version("flwr")
    except PackageNotFoundError:
        raise PlanError("Flower is not installed", get) from None
    numbers = tuple(int(part) if part.isdecimal() else 0 for part in installed.split(".")[:2])
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise PlanError(f"Flower {installed} is installed, and thalweg needs {oldest} or newer", get)
    return installed
