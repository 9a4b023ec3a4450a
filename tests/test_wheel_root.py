"""scripts/wheel_root.sh with fake programs of Debian: what it asks apt for, what it leaves, and what it refuses."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "wheel_root.sh"
# apt-get downloads one package into its own folder of archives. dpkg-deb unpacks a Python from each.
APT = """#!/bin/sh
echo "$*" >>"$LOG"
for word; do case $word in Dir::Cache::archives=*) archives=${word#*=} ;; esac; done
case " $* " in *" install "*) ;; *) exit 0 ;; esac
[ -z "$BROKEN" ] || { echo "E: no package" >&2; exit 100; }
: >"$archives/python.deb"
"""
UNPACK = """#!/bin/sh
mkdir -p "$3/usr/bin" "$3/usr/lib"
: >"$3/usr/bin/python3.11"
: >"$3/usr/lib/loader"
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, text in (("apt-get", APT), ("dpkg-deb", UNPACK)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def run(programs: Path, *arguments: str, broken: str = "") -> tuple[int, str, list[str]]:
    """Run the script; return its exit code, what it printed, and the calls of apt-get."""
    log = programs.parent / "log"
    log.unlink(missing_ok=True)
    temporary = programs.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    path = f"{programs}:{os.environ['PATH']}"
    environment = {"PATH": path, "LOG": str(log), "TMPDIR": str(temporary), "BROKEN": broken}
    done = subprocess.run(
        [str(SCRIPT), *arguments], env=environment, cwd=programs.parent, capture_output=True, text=True, check=False
    )
    assert list(temporary.iterdir()) == []
    return done.returncode, done.stdout + done.stderr, log.read_text().splitlines() if log.exists() else []


@pytest.mark.parametrize(("more", "processor"), [((), "arm64"), (("riscv64",), "riscv64")])
def test_packages_of_that_processor_are_unpacked_and_not_installed(
    programs: Path, more: tuple[str, ...], processor: str
) -> None:
    code, said, calls = run(programs, "root", *more)
    root = programs.parent / "root"
    assert code == 0, said
    assert f"{root}/usr/bin/python3.11 is for {processor}" in said
    assert (root / "lib" / "loader").is_file(), "where the loader is looked for"
    assert len(calls) == 2
    for call in calls:
        assert f"APT::Architecture={processor} -o APT::Architectures={processor} " in call
        assert "Dir::State::status=" in call, "the packages of this machine are not looked at"
    assert "--download-only" in calls[1]


def test_a_folder_that_is_there_stays_as_it_is(programs: Path) -> None:
    (programs.parent / "root").mkdir()
    code, said, calls = run(programs, "root")
    assert (code, calls) == (1, [])
    assert said.startswith("error: root is there already\nhint: ")


def test_nothing_is_left_where_packages_cannot_be_had(programs: Path) -> None:
    code, said, _ = run(programs, "root", broken="1")
    assert code == 100
    assert "E: no package" in said
    assert not (programs.parent / "root").exists()


def test_a_folder_has_to_be_named(programs: Path) -> None:
    code, said, calls = run(programs)
    assert (code, calls) == (1, [])
    assert said.startswith("error: no folder is named\nhint: ")
