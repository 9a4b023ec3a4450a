"""Ensures that a process ends when its parent ends."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def tied() -> list[str]:
    """Return a prefix for a command, with which the kernel kills the command when its parent ends.

    It is empty if ``setpriv`` is not installed.
    """
    setpriv = shutil.which("setpriv")
    return [] if setpriv is None else [setpriv, "--pdeathsig", "KILL"]


def die_with(parent: int) -> None:
    """Ask the kernel to end this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent has ended")
