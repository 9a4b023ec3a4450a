"""The size of a page, and that its plotting library is the published one."""

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import Path

from tests.report.records import make
from thalweg.report import report
from thalweg.report.document import LIBRARY

MOST_BYTES = 1_500_000
# SHA-256 of plotly-basic.min.js in the npm package plotly.js-basic-dist-min 4.1.1.
SHA256 = "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"


def test_a_page_of_many_clients_rounds_and_runs_is_small(tmp_path: Path) -> None:
    names = [f"client-{number}" for number in range(1, 33)]
    large = [make(tmp_path / f"large-{number}", rounds=20, names=names) for number in range(2)]
    small = [make(tmp_path / f"small-{number}") for number in range(20)]
    assert report([large[0]], tmp_path / "one.html").bytes < MOST_BYTES
    assert report([*large, *small], tmp_path / "all.html").bytes < MOST_BYTES


def test_the_library_is_the_published_one() -> None:
    library = resources.files("thalweg.report").joinpath(LIBRARY).read_bytes()
    assert hashlib.sha256(library).hexdigest() == SHA256
    assert b"MIT" in library[:300]
    licence = resources.files("thalweg.report").joinpath("plotly-LICENSE.txt").read_text()
    assert "Copyright" in licence
