"""How long the programs that a command has started get to end by themselves before they are killed.

Whoever waits for one to end asks ``within``. While Ctrl-C is dealt with that is hardly any time, so that a command has
ended with all its programs within two seconds.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Final, NoReturn

# For each of the programs of a command; together they get less than two seconds.
HURRIED_SECONDS: Final = 0.4


_interrupts: list[int] = []


def remember_interrupts() -> None:
    """From now on remember Ctrl-C, which raises KeyboardInterrupt as before. To be called in the main thread.

    Code that catches everything, in a library that is being imported, say, can lose the exception.
    """

    def heard(number: int, _frame: FrameType | None) -> None:
        _interrupts.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, heard)


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
