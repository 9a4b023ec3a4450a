"""scripts/setup.sh with fake programs: which steps it takes, and that packages and the core are made side by side."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
BASH = shutil.which("bash") or "bash"
# Each fake program writes its arguments down. Installing packages and compiling alone wait for each other
# at a named pipe, so that they end only if they run side by side.
MATURIN = f"""#!{BASH}
echo "maturin $*" >>"$LOG"
case "$*" in *--skip-install*) read -r line <"$MEET" ;; esac
mkdir -p python/thalweg
: >python/thalweg/_core.abi3.so
"""
PYTHON = f"""#!{BASH}
case "$*" in
"-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
"-m pip install "*) echo tools >>"$LOG" && cp "$FAKES/maturin" .venv/bin/maturin ;;
"-m uv pip sync "*) echo packages >>"$LOG" && {{ [ ! -p "$MEET" ] || echo here >"$MEET"; }} && exit "${{BROKEN:-0}}" ;;
esac
"""
LOCK = (
    "uv==1 \\\n    --hash=sha256:1\nmaturin==1 \\\n    --hash=sha256:2\n    # via x\nother==1 \\\n    --hash=sha256:3\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with nothing but what the script looks at, and a folder of fake programs."""
    for name in ("setup.sh", "step.sh", "usage.sh"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        shutil.copy(SCRIPTS / name, tmp_path / "scripts" / name)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "dev.lock").write_text(LOCK)
    (tmp_path / "crates").mkdir()
    (tmp_path / "Cargo.toml").write_text('rust-version = "1.1"\n')
    for name in ("Cargo.lock", "pyproject.toml"):
        (tmp_path / name).touch()
    (tmp_path / "fakes").mkdir()
    programs = {"python3": PYTHON, "maturin": MATURIN, "rustc": f"#!{BASH}\necho rustc 1.2.3\n"}
    for name in ("cargo", "cc", "c++"):
        programs[name] = f"#!{BASH}\n"
    for name, text in programs.items():
        (tmp_path / "fakes" / name).write_text(text)
        (tmp_path / "fakes" / name).chmod(0o755)
    return tmp_path


def set_up(folder: Path, **more: str) -> tuple[int, list[str]]:
    """Run the script; return its exit code, and what the fake programs did meanwhile."""
    log = folder / "log"
    log.unlink(missing_ok=True)
    fakes = folder / "fakes"
    environment = {"HOME": str(folder), "PATH": f"{fakes}:{os.environ['PATH']}", "FAKES": str(fakes), "LOG": str(log)}
    environment |= {"MEET": str(folder / "meet"), "THALWEG_PYTHON": str(fakes / "python3"), **more}
    script = folder / "scripts" / "setup.sh"
    done = subprocess.run(
        [script], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode or not done.stderr, done.stderr
    return done.returncode, log.read_text().splitlines() if log.exists() else []


DEVELOP = "maturin develop --profile release --uv"


def test_packages_are_installed_while_the_core_is_compiled(folder: Path) -> None:
    os.mkfifo(folder / "meet")
    code, steps = set_up(folder)
    assert code == 0
    assert (steps[0], set(steps[1:3]), steps[3:]) == ("tools", {"packages", f"{DEVELOP} --skip-install"}, [DEVELOP])
    (folder / "meet").unlink()
    assert (folder / ".venv/.stamps/tools.txt").read_text() == LOCK.partition("    # via")[0]
    assert set_up(folder) == (0, []), "nothing has changed"


def test_what_has_changed_is_made_again(folder: Path) -> None:
    os.mkfifo(folder / "meet")
    assert set_up(folder)[0] == 0
    (folder / "meet").unlink()
    (folder / "requirements" / "dev.lock").write_text(LOCK + "# another\n")
    assert set_up(folder) == (0, ["packages", DEVELOP])
    assert set_up(folder, BASELINES="1", CORE_PROFILE="dev", CI="1") == (
        0,
        ["maturin develop --profile dev --uv --locked --features baselines --features as-in-tests"],
    )


def test_packages_that_cannot_be_installed_end_the_set_up(folder: Path) -> None:
    os.mkfifo(folder / "meet")
    code, steps = set_up(folder, BROKEN="2")
    assert code != 0
    assert DEVELOP not in steps
    assert not (folder / ".venv/.stamps/core").exists()
