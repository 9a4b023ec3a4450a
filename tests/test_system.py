"""scripts/system.sh with a fake apt-get: it installs missing packages, and never fails."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "system.sh"
TOOLS = ("bash", "chmod", "mktemp", "rm", "grep", "tail")
PROGRAMS = ["chromium", "stress-ng", "iperf3", "mosquitto", "rabbitmq-server", "clang"]
GUEST = ["bc", "bison", "flex", "patch", "xz-utils"]
WANTED = [*PROGRAMS, "dataset-fashion-mnist", "libibverbs-dev", "ibverbs-providers", *GUEST]
# Prints the exit code that a package's scripts get when they ask whether they may start services (policy-rc.d).
ASKED = '[ ! -x "$POLICY_RC_D" ] || { "$POLICY_RC_D"; echo "policy $?" >>"$LOG"; }; '
APT = f'{ASKED}echo "$@" >>"$LOG"; [ "${{@: -1}}" != "$BAD" ] || {{ echo "E: Unable to locate package"; exit 100; }}'


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with all programs that the script can find, without apt-get. The user is root."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        (folder / name).symlink_to(shutil.which(name) or name)
    write(folder / "id", "echo 0")
    return folder


def write(path: Path, line: str) -> None:
    path.write_text(f"#!{shutil.which('bash')}\n{line}\n")
    path.chmod(0o755)


def policy(programs: Path) -> Path:
    return programs.parent / "policy-rc.d"


def told(programs: Path) -> list[str]:
    lines = (programs.parent / "apt.log").read_text().splitlines()
    return [line.removeprefix("policy ") for line in lines if line.startswith("policy ")]


def run(programs: Path, bad: str = "none") -> tuple[str, list[str]]:
    log = programs.parent / "apt.log"
    environment = {"PATH": str(programs), "LOG": str(log), "BAD": bad, "POLICY_RC_D": str(policy(programs))}
    done = subprocess.run([str(SCRIPT)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    words = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return done.stdout, [line[-1] for line in words if "install" in line]


def test_what_is_missing_is_installed(programs: Path) -> None:
    write(programs / "apt-get", APT)
    write(programs / "iperf3", "true")
    said, installed = run(programs)
    assert installed == [name for name in WANTED if name != "iperf3"]
    assert f"iperf3 is there: {programs / 'iperf3'}" in said
    assert "not installed" not in said


def test_no_service_is_started(programs: Path) -> None:
    write(programs / "apt-get", APT)
    disabled = programs.parent / "disabled"
    write(programs / "systemctl", f'echo "$@" >>{disabled}')
    run(programs)
    assert set(told(programs)) == {"101"}
    assert not policy(programs).exists()
    services = disabled.read_text().split()
    assert services[:2] == ["disable", "--now"]
    assert {"mosquitto.service", "rabbitmq-server.service", "epmd.service", "epmd.socket"} <= set(services)


def test_the_administrators_policy_and_services_stay(programs: Path) -> None:
    write(programs / "apt-get", APT)
    write(policy(programs), "exit 42")
    for name in ("mosquitto", "rabbitmq-server", "epmd"):
        write(programs / name, "true")
    disabled = programs.parent / "disabled"
    write(programs / "systemctl", f'echo "$@" >>{disabled}')
    run(programs)
    assert set(told(programs)) == {"42"}
    assert policy(programs).exists()
    assert not disabled.exists()


def test_one_that_cannot_be_installed_is_named_with_the_cause(programs: Path) -> None:
    write(programs / "apt-get", APT)
    said, installed = run(programs, bad="chromium")
    assert installed == WANTED
    assert "chromium: E: Unable to locate package" in said
    assert "not installed: chromium\n" in said
    assert "hint: " in said


@pytest.mark.parametrize(("apt", "user", "cause"), [(False, 0, "no apt-get"), (True, 1000, "only root")])
def test_where_it_cannot_install_it_says_why(programs: Path, apt: bool, user: int, cause: str) -> None:
    if apt:
        write(programs / "apt-get", APT)
    write(programs / "id", f"echo {user}")
    said, installed = run(programs)
    assert installed == []
    assert f"not installed: {' '.join(WANTED)}" in said
    assert cause in said
