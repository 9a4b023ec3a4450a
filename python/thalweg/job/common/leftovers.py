"""Ends processes that an app started and did not end, such as data loaders, after its client's process has ended."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Final

from thalweg.machine.grace import within

# Seconds from SIGTERM to SIGKILL, and between two checks whether a process of the group is still running.
TERM_SECONDS: Final = 2.0
CHECK_SECONDS: Final = 0.02


def end_group(group: int) -> None:
    """End the processes of a group whose leader has ended: by SIGTERM, and after ``TERM_SECONDS`` by SIGKILL.

    The kernel does not reuse the group's id while a member lives. Processes that have left the group are not found.
    """
    with suppress(OSError):  # killpg fails once the group has no process
        os.killpg(group, signal.SIGTERM)
        deadline = time.monotonic() + within(TERM_SECONDS)
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(CHECK_SECONDS)
        os.killpg(group, signal.SIGKILL)
