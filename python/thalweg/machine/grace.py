"""How long the programs that a command has started get to end by themselves before they are killed.

Whoever waits for one to end asks ``within``. While Ctrl-C is dealt with that is hardly any time, so that a command has
ended with all its programs within two seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from types import FrameType
from typing import Final, NoReturn

# For each of the programs of a command; together they get less than two seconds.
HURRIED_SECONDS: Final = 0.4


# How often, and for how long at most, Ctrl-C waits for an import to end.
LOOK_SECONDS: Final = 0.02
IMPORT_SECONDS: Final = 5.0
IMPORTERS: Final = "<frozen importlib"

_interrupts: list[float] = []


def remember_interrupts() -> None:
    """From now on remember Ctrl-C, and raise KeyboardInterrupt between imports. To be called in the main thread.

    Some libraries catch every exception while they are imported, NumPy and PyTorch among them, and may not work
    afterwards. So Ctrl-C during an import is raised when the import has ended, after five seconds, or with a second
    Ctrl-C, whichever comes first. It takes the process's timer ``ITIMER_REAL``.
    """

    def heard(_number: int, frame: FrameType | None) -> None:
        _interrupts.append(time.monotonic())
        raise_between_imports(0, frame)

    def raise_between_imports(_number: int, frame: FrameType | None) -> None:
        waited = time.monotonic() - _interrupts[0]
        if is_importing(frame) and len(_interrupts) == 1 and waited < IMPORT_SECONDS:
            signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS)
            return
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, heard)
        signal.signal(signal.SIGALRM, raise_between_imports)


def is_importing(frame: FrameType | None) -> bool:
    """Return whether ``frame`` runs for an ``import`` statement of some caller."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(IMPORTERS):
            return True
        frame = frame.f_back
    return False


def end_if_interrupted() -> None:
    """Raise KeyboardInterrupt if Ctrl-C came and was lost: long work asks before each of its steps."""
    if _interrupts:
        raise KeyboardInterrupt


def is_hurried() -> bool:
    """Return whether the calling thread is ending things because of Ctrl-C: in a ``finally`` or ``with``, say."""
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def leave(code: int) -> NoReturn:
    """End this process at once, after what it has said has gone out.

    After Ctrl-C threads may still run that nobody can end, as those of clients that train; Python waits for some of
    them, and others crash when it ends around them.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def within(seconds: float, hurried: float = HURRIED_SECONDS) -> float:
    """Return ``seconds``; while Ctrl-C is dealt with, ``hurried`` ones if that is less."""
    return min(seconds, hurried) if is_hurried() else seconds
