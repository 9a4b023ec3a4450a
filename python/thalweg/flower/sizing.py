"""How much a Flower app sends, asked of its ServerApp in a process of its own, since an app may import anything."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from thalweg.plan import Plan

#: Seconds that an app has to send its first message.
PATIENCE: Final = 120.0
COMMAND: Final = (sys.executable, "-m", "thalweg.flower.dry")


@dataclass(frozen=True)
class Size:
    """Bytes of arrays in a message of an app's ServerApp, and in how many rounds; None for what is not known."""

    update_bytes: int | None
    rounds: int | None


def ask(plan: Plan) -> Size:
    """Return the size of a plan's Flower app; nothing of it is known if the app fails."""
    if plan.app is None:
        return Size(None, None)
    order = {
        "folder": plan.app.object.partition(":")[2],
        "options": plan.app.options or {},
        "clients": plan.job.clients,
        "seed": plan.job.seed,
    }
    try:
        done = subprocess.run(
            COMMAND, input=json.dumps(order), capture_output=True, text=True, timeout=PATIENCE, check=True
        )
        return Size(**json.loads(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, IndexError):
        return Size(None, None)
