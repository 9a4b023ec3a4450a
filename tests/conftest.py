"""For all tests: property tests use the same values each time, and programs that a test starts get signals."""

from __future__ import annotations

import signal
from functools import lru_cache

import typer.main
import typer.testing
from hypothesis import HealthCheck, settings

settings.register_profile("thalweg", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("thalweg")

# Tests of the command line call it hundreds of times, and each time its commands would be made anew, in 50 ms.
typer.testing._get_command = lru_cache(typer.main.get_command)  # type: ignore[attr-defined]

# A shell in the background ignores SIGINT, and nohup SIGHUP; the programs that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
