"""A plugin of pytest: all tests run with the adapter's patches of Flower (``pytest -p tests.flower.patched``)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from thalweg.flower import fold


@pytest.fixture(autouse=True, scope="session")
def patched() -> Iterator[None]:
    with fold.installed():
        yield
