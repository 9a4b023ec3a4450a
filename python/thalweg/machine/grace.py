"""Handles signals that end a command, and limits how long the programs that it started may take to end.

SIGTERM (``docker stop``, ``kubectl delete``, Slurm) and SIGHUP (a closed terminal) do the same as Ctrl-C: the command
cleans up and ends, and its exit code is 128 plus the signal's number. Code that waits for a program to end calls
``within`` for its timeout. After a signal that timeout is short. So the command and all its programs end within two
seconds, and its record is complete within five.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from types import FrameType
from typing import Final, NoReturn

# Timeout for the end of each program of a command after a signal, so that all end within two seconds.
HURRIED_SECONDS: Final = 0.4


# The signals that end a command.
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# A signal waits for an import or the start of a program to end: seconds between two checks, and the maximum in all.
LOOK_SECONDS: Final = 0.02
IMPORT_SECONDS: Final = 5.0
IMPORTERS: Final = "<frozen importlib"

# The signals that arrived, each with its time.
_interrupts: list[tuple[int, float]] = []


def remember_interrupts() -> None:
    """From now on remember the signals of ``ENDING``, and raise KeyboardInterrupt, but not in an import or a Popen.

    Call it in the main thread. A signal that this process was started to ignore, as by ``nohup``, stays ignored. Only
    Ctrl-C counts more than once: service managers and shells repeat the others while a command is ending.

    Some libraries catch every exception while they are imported, NumPy and PyTorch among them, and may not work
    afterwards. And a program whose ``Popen`` is cut short runs on, as nobody has a handle to end it. So a signal
    during an import or the start of a program is raised when that has ended, after five seconds, or with a Ctrl-C after
    it, whichever comes first. The wait uses the process's timer ``ITIMER_REAL``.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            leave_lost_terminal()
        if _interrupts and number != signal.SIGINT:
            return
        _interrupts.append((number, time.monotonic()))
        raise_when_safe(0, frame)

    def raise_when_safe(_number: int, frame: FrameType | None) -> None:
        waited = time.monotonic() - _interrupts[0][1]
        if (is_importing(frame) or is_starting(frame)) and len(_interrupts) == 1 and waited < IMPORT_SECONDS:
            signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS)
            return
        signal.setitimer(signal.ITIMER_REAL, 0)  # SIGALRM kills a process that is ending: Python has reset its handler
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, raise_when_safe)
    for number in ENDING:
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
            signal.signal(number, handle)
    _leave_out_forks()


def _leave_out_forks() -> None:
    """Let SIGTERM and SIGHUP end forked processes at once, because their parent (PyTorch's data loader) ends them so.

    During a fork both signals are blocked, because Python loses a signal that arrives at a process just forked.
    """
    before: list[set[int]] = []

    def hold() -> None:
        before.append(signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP}))

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.pop())

    def forget() -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        release()

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=forget)


def leave_lost_terminal() -> None:
    """Redirect the standard streams of a closed terminal to /dev/null, since every write to it fails."""
    for number in filter(_is_lost_terminal, (0, 1, 2)):
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, number)
        os.close(nowhere)


def _is_lost_terminal(number: int) -> bool:
    try:
        termios.tcgetattr(number)
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)
    return False


def interrupted_code() -> int:
    """Return the exit code of a command that a signal has ended: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
    return 128 + (_interrupts[0][0] if _interrupts else signal.SIGINT)


def is_importing(frame: FrameType | None) -> bool:
    """Return whether ``frame`` runs for an ``import`` statement of some caller."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(IMPORTERS):
            return True
        frame = frame.f_back
    return False


def is_starting(frame: FrameType | None) -> bool:
    """Return whether ``frame`` runs for a ``subprocess.Popen`` that is being made."""
    code = subprocess.Popen.__init__.__code__
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


def end_if_interrupted() -> None:
    """Raise KeyboardInterrupt if a signal arrived, as a library may have caught it. Long work calls this often."""
    if _interrupts:
        raise KeyboardInterrupt


def is_hurried() -> bool:
    """Return whether the calling thread cleans up because of a signal, for example in a ``finally`` or ``with``."""
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def leave(code: int) -> NoReturn:
    """Flush the standard streams and end this process at once.

    After a signal, threads may still run that cannot be stopped, such as clients that train. Python's ordinary exit
    waits for some threads, and others crash during it.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the reader has closed the pipe, or the stream is closed
            stream.flush()
    os._exit(code)


def within(seconds: float, hurried: float = HURRIED_SECONDS) -> float:
    """Return ``seconds``, or at most ``hurried`` seconds while a signal is ending the command."""
    return min(seconds, hurried) if is_hurried() else seconds
