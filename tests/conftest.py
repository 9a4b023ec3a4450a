"""For all tests: property tests use the same values in each run, and programs that a test starts receive signals."""

from __future__ import annotations

import signal
from functools import lru_cache

import typer.main
import typer.testing
from hypothesis import HealthCheck, settings

settings.register_profile("thalweg", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("thalweg")

# Tests call the command line hundreds of times. Without this cache each call would make its commands anew, in 50 ms.
typer.testing._get_command = lru_cache(typer.main.get_command)  # type: ignore[attr-defined]

# Background shells ignore SIGINT, and nohup ignores SIGHUP. Programs that the tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
