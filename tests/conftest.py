"""For all tests: property tests use the same values each time, and programs that a test starts get signals."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("thalweg", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("thalweg")

# A shell in the background ignores SIGINT, and nohup SIGHUP; the programs that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
