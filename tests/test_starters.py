"""Projects of ``thalweg new``: each is made offline, its code is clean, and its own test passes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from thalweg import extras, starters
from thalweg.cli import app
from thalweg.errors import PlanError


def made(folder: Path, kind: str) -> Path:
    done = CliRunner().invoke(app, ["new", str(folder), "--from", kind, "--json"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["files"] == [str(path) for path in sorted(folder.iterdir())]
    return folder


def checked(folder: Path, *command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_template_is_a_kind() -> None:
    assert sorted(path.name for path in starters.TEMPLATES.iterdir()) == sorted(starters.KINDS)


@pytest.mark.parametrize("kind", starters.KINDS)
def test_a_project_is_whole_and_tidy(kind: str, tmp_path: Path) -> None:
    folder = made(tmp_path / "my project", kind)
    assert {"README.md", "plan.toml", "test_app.py"} <= {path.name for path in folder.iterdir()}
    assert "my project" in (folder / "README.md").read_text()
    checked(folder, "ruff", "check", "--isolated", "--no-cache", "--line-length", "120", ".")
    checked(folder, "ruff", "format", "--isolated", "--no-cache", "--line-length", "120", "--check", ".")


@pytest.mark.e2e
@pytest.mark.parametrize("kind", starters.KINDS)
def test_its_own_test_passes(kind: str, tmp_path: Path) -> None:
    package = starters.NEEDS.get(kind)
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: make test-extras")
    checked(made(tmp_path / kind, kind), "pytest", "-q", "-p", "no:cacheprovider", ".")


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(PlanError, match="not an empty folder"):
        starters.make(tmp_path, "numpy")
    with pytest.raises(PlanError, match="not an empty folder"):
        starters.make(tmp_path / "mine.txt", "numpy")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    starters.make(tmp_path / "new" / "deep", "numpy")


def test_the_next_command_can_be_copied(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["new", str(tmp_path / "my project")])
    assert done.stdout.splitlines()[-1] == f"now: cd '{tmp_path}/my project' && thalweg run plan.toml"


@pytest.mark.parametrize(
    ("there", "lines"),
    [(True, ["now"]), (False, ["first: pip install 'thalweg[lm]'", "now"])],
    ids=["there", "missing"],
)
def test_what_a_project_needs_is_named_if_it_is_missing(
    there: bool, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "has", lambda _: there)
    done = CliRunner().invoke(app, ["new", str(tmp_path / "new"), "--from", "lora"])
    said = done.stdout.splitlines()[len(list((tmp_path / "new").iterdir())) :]
    assert [line.partition(": cd")[0] for line in said] == lines


def test_each_package_that_a_project_needs_comes_with_an_extra() -> None:
    for kind, package in starters.NEEDS.items():
        assert f"pip install 'thalweg[{extras.EXTRAS[package]}]'" in starters.files(kind, "name")["README.md"]


@pytest.mark.parametrize("kind", starters.KINDS)
def test_a_project_says_that_pip_does_not_find_thalweg_itself(kind: str) -> None:
    assert "thalweg is on no package index yet" in starters.files(kind, "name")["README.md"]


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["new", str(tmp_path / "new"), "--from", "jax"])
    assert done.exit_code == 2
    assert "numpy, torch, sklearn" in done.stderr
    assert not (tmp_path / "new").exists()
