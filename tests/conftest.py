"""What all tests share: no test of properties fails because a machine is busy."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("thalweg", deadline=None)
settings.load_profile("thalweg")
