"""scripts/system.sh with an apt-get of the test's own: it installs what is missing, and never fails."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "system.sh"
TOOLS = ("bash", "mktemp", "rm", "grep", "tail")
APT = 'echo "$@" >>"$LOG"; [ "${@: -1}" != "$BAD" ] || { echo "E: Unable to locate package"; exit 100; }'


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with the only programs there are, apt-get not among them; the user is root."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        (folder / name).symlink_to(shutil.which(name) or name)
    write(folder / "id", "echo 0")
    return folder


def write(path: Path, line: str) -> None:
    path.write_text(f"#!{shutil.which('bash')}\n{line}\n")
    path.chmod(0o755)


def run(programs: Path, bad: str = "none") -> tuple[str, list[str]]:
    log = programs.parent / "apt.log"
    environment = {"PATH": str(programs), "LOG": str(log), "BAD": bad}
    done = subprocess.run([str(SCRIPT)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    words = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return done.stdout, [line[-1] for line in words if "install" in line]


def test_what_is_missing_is_installed(programs: Path) -> None:
    write(programs / "apt-get", APT)
    write(programs / "iperf3", "true")
    said, installed = run(programs)
    assert installed == ["chromium", "stress-ng"]
    assert f"iperf3 is there: {programs / 'iperf3'}" in said
    assert "not installed" not in said


def test_one_that_cannot_be_installed_is_named_with_the_cause(programs: Path) -> None:
    write(programs / "apt-get", APT)
    said, installed = run(programs, bad="chromium")
    assert installed == ["chromium", "stress-ng", "iperf3"]
    assert "chromium: E: Unable to locate package" in said
    assert "not installed: chromium\n" in said
    assert "mend: " in said


@pytest.mark.parametrize(("apt", "user", "cause"), [(False, 0, "no apt-get"), (True, 1000, "only root")])
def test_where_it_cannot_install_it_says_why(programs: Path, apt: bool, user: int, cause: str) -> None:
    if apt:
        write(programs / "apt-get", APT)
    write(programs / "id", f"echo {user}")
    said, installed = run(programs)
    assert installed == []
    assert "not installed: chromium stress-ng iperf3" in said
    assert cause in said
