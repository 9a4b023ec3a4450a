"""A wheel of the core that is built here, installed and used as a user does: its files and its requirements.

`make wheel` does the same with the wheel that also runs on other machines.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.conftest import TIMEOUT
from thalweg import machine

ROOT: Final = Path(__file__).parents[2]
STAMPS: Final = ROOT / ".venv/.stamps"


def stamp(name: str, default: str) -> str:
    """Return how the core was built, from the file that `scripts/setup.sh` wrote."""
    path = STAMPS / name
    return path.read_text().strip() if path.exists() else default


@pytest.mark.e2e
def test_a_wheel_of_this_core_is_all_that_a_user_needs(tmp_path: Path) -> None:
    # With other features or another commit name, cargo would compile a release core again, which takes minutes. So the
    # wheel has what the core has. In a dev build cargo compiles only this repository's crates again, and the wheel has
    # no baselines, as in releases.
    profile, features = stamp("profile", "release"), []
    features += ["baselines"] if stamp("baselines", "0") == "1" and profile == "release" else []
    features += ["as-in-tests"] if profile == "dev" else []
    core = ROOT / "target" / ("debug" if profile == "dev" else profile) / "lib_core.so"
    if not core.exists():
        pytest.skip(f"there is no {core.relative_to(ROOT)} to pack: make setup builds it")
    commit = machine.build().commit
    environment = {**os.environ, **({} if commit is None else {"THALWEG_COMMIT": commit})}
    maturin = [
        sys.executable,
        "-m",
        "maturin",
        "build",
        "--profile",
        profile,
        "--features",
        ",".join(features),
        "--compatibility",
        "linux",
        "--out",
        str(tmp_path),
    ]
    subprocess.run(maturin, cwd=ROOT, env=environment, check=True, timeout=TIMEOUT)
    (wheel,) = tmp_path.glob("*.whl")
    test = [sys.executable, str(ROOT / "scripts/test_wheel.py"), str(wheel), "--locked", "--extra", "report"]
    done = subprocess.run(test, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    if "Failed to fetch" in done.stderr:
        pytest.skip("its dependencies are not in the cache of uv, and no registry answers")
    assert done.returncode == 0, done.stderr
    assert "thalweg run:" in done.stdout
    assert "base: " in done.stdout
    assert "report: " in done.stdout
