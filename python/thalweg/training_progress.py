"""How much of its training a client has done in the present round, for the bars of a terminal.

The loop of a client calls ``showing`` around each training. What trains calls ``report_progress``. The two share a
context variable, so code that trains needs no argument for it, and each thread has its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeAlias

# Called with the round's number and the fraction of the training that is done, 0 to 1.
Show: TypeAlias = Callable[[int, float], None]
# Seconds between two reports of a client: a training has thousands of steps, and a screen is drawn ten times a second.
INTERVAL: Final = 0.25

_show: ContextVar[Show | None] = ContextVar("show", default=None)
_report: ContextVar[Callable[[float], None] | None] = ContextVar("report", default=None)


def report_progress(fraction: float) -> None:
    """Say which fraction of this round's training is done, from 0 to 1; the bars of ``thalweg run`` show it.

    Call it in an app's ``train``, in the thread that thalweg called, as often as you like: at most four reports a
    second are passed on. It does nothing where nobody shows it, as in a client on another machine. A fraction outside
    of 0 to 1 is taken as the nearest bound; one that is not a number is ignored.
    """
    report = _report.get()
    if report is not None:
        report(fraction)


def show_with(show: Show) -> None:
    """Pass the reports of trainings in this thread to ``show`` from now on."""
    _show.set(show)


@contextmanager
def showing(number: int, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Take what the block says with ``report_progress`` as progress in round ``number``."""
    show = _show.get()
    if show is None:
        yield
        return
    last = clock()

    def report(fraction: float) -> None:
        nonlocal last
        now = clock()
        if now - last >= INTERVAL and fraction == fraction:  # noqa: PLR0124 - only NaN differs from itself
            last = now
            show(number, min(1.0, max(0.0, fraction)))

    token = _report.set(report)
    try:
        yield
    finally:
        _report.reset(token)
