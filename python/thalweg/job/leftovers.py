"""Ends the processes that an app has left behind, such as one started in training, when its client has ended."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Final

from thalweg.machine.grace import within

# Seconds that the processes get to end by themselves, and between two checks whether they have.
SECONDS: Final = 2.0
LOOK: Final = 0.02


def end_group(group: int) -> None:
    """End the processes of a group whose leader has ended: by SIGTERM, and after ``SECONDS`` by SIGKILL.

    While a member lives, no new process gets the group's number. Processes that have left the group are not found.
    """
    with suppress(OSError):  # the group has no process, or its last one has ended
        os.killpg(group, signal.SIGTERM)
        deadline = time.monotonic() + within(SECONDS)
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(LOOK)
        os.killpg(group, signal.SIGKILL)
