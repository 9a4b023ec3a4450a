"""Skips tests that need the baselines, in a build of the core without them."""

from __future__ import annotations

from typing import Final

import pytest

from thalweg import _core

NEEDED: Final = pytest.mark.skipif(not _core.BASELINES, reason="this build has no baselines: make setup BASELINES=1")
