"""Finds how much a Flower app sends. The ServerApp runs in a process of its own, since it may import anything."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from thalweg import wire

if TYPE_CHECKING:
    from thalweg.plan import Plan

#: Seconds within which an app must send its first message.
TIMEOUT: Final = 120.0
COMMAND: Final = (sys.executable, "-m", "thalweg.flower.dry")


@dataclass(frozen=True)
class Size:
    """Bytes of arrays in a message of a ServerApp, and its number of rounds; None if not known."""

    update_bytes: int | None
    rounds: int | None


@dataclass(frozen=True)
class Order:
    """What the process reads: the app's folder, values over its configuration, how many clients, and the seed."""

    folder: str
    options: Mapping[str, bool | int | float | str]
    clients: int
    seed: int


def ask(plan: Plan) -> Size:
    """Return the size of a plan's Flower app; both values are None if the app fails or takes too long."""
    if plan.app is None:
        return Size(None, None)
    order = Order(plan.app.object.partition(":")[2], plan.app.options or {}, plan.job.clients, plan.job.seed)
    try:
        done = subprocess.run(
            COMMAND, input=wire.encode(order), capture_output=True, text=True, timeout=TIMEOUT, check=True
        )
        return wire.decode(Size, done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, IndexError):
        return Size(None, None)
