"""Ensures that a process ends when its parent ends, and finds the processes that others leave behind."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36


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


def adopt_orphans() -> None:
    """From now on, a descendant whose parent ends becomes a child of this process."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def children() -> list[int]:
    """Return the ids of this process's children, also of those that have ended and were not waited for."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            # The name, in brackets, may hold spaces (proc_pid_stat(5)); state and parent follow it.
            _state, parent, *_ = path.read_text(errors="replace").rpartition(")")[2].split()
            found += [int(path.parent.name)] if int(parent) == os.getpid() else []
    return found
