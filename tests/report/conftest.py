from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.records import make


@pytest.fixture
def wifi(tmp_path: Path) -> Path:
    return make(tmp_path / "wifi")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A payload's record without a lab, of a run that failed before it wrote tables."""
    return make(
        tmp_path / "bare",
        rounds=2,
        plan={"model": {"name": "payload:1MB"}},
        manifest={"status": "failed", "bound": {"source": "not known for this network"}},
        train=None,
        lab=False,
        parquet=False,
    )
