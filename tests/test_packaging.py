"""The package's requirements agree with the lock file of this repository's environment."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from thalweg.sections import toml

ROOT = Path(__file__).parents[1]


def names(requirements: list[str]) -> set[str]:
    found = (re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in requirements)
    return {match[0].lower() for match in found if match is not None}


# Extras that this repository's environment does not install. Tests that need them are skipped, with that reason.
UNLOCKED = {"lm", "ray", "trackers"}


def test_the_lock_has_everything_with_hashes() -> None:
    project = toml.loads((ROOT / "pyproject.toml").read_text(), "pyproject.toml")["project"]
    extras = project["optional-dependencies"]
    needs = [need for extra in extras.keys() - UNLOCKED for need in extras[extra]]
    tools = names((ROOT / "requirements" / "dev.in").read_text().splitlines())
    lock = (ROOT / "requirements" / "dev.lock").read_text()
    pinned = re.findall(r"^([a-z0-9._-]+)==\S+.*\\\n    --hash=sha256:", lock, re.MULTILINE)
    assert names([*project["dependencies"], *needs]) | tools <= set(pinned)
    assert len(re.findall(r"^[a-z0-9]", lock, re.MULTILINE)) == len(pinned), "every pin has a hash"


def test_the_lock_names_no_index() -> None:
    for lock in (ROOT / "requirements").glob("*.lock"):
        assert "://" not in lock.read_text(), lock.name


WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"


def test_a_release_is_built_as_make_wheel_does() -> None:
    commands = re.findall(r"^ *(?:- )?run: (.*)$", WORKFLOW.read_text(), re.MULTILINE)
    assert "make wheel" in commands
    assert not [command for command in commands if "maturin" in command], "scripts/wheel.sh calls it"


def test_the_release_workflow_has_no_faults() -> None:
    linter = shutil.which("actionlint")
    if linter is None:
        pytest.skip("actionlint is not installed: go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12")
    done = subprocess.run([linter, str(WORKFLOW)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
