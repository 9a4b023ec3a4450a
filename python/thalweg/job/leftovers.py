"""Processes that an app leaves behind, as one that it started in training, end with the client that started them."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Final

from thalweg.machine.grace import within

# Seconds that they get to end by themselves, and between two looks at whether they have.
SECONDS: Final = 2.0
LOOK: Final = 0.02


def end_group(group: int) -> None:
    """End the processes of a group whose leader has ended: by SIGTERM, and after two seconds by SIGKILL.

    A group's number is given to no other process while a member lives. Those that have left the group are not found.
    """
    with suppress(OSError):  # there is none, or none is left
        os.killpg(group, signal.SIGTERM)
        deadline = time.monotonic() + within(SECONDS)
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(LOOK)
        os.killpg(group, signal.SIGKILL)
