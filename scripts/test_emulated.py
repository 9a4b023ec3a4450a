"""Runs a wheel for another processor under QEMU's user emulation: test_emulated.py WHEEL ROOT.

ROOT is a folder with a Linux of that processor, in which usr/bin has python3, such as Debian's packages of Python
unpacked there. uv installs the wheel and its base for that processor into a folder of its own. Then ``thalweg doctor``
runs, and a job of three rounds over tcp. Speed under emulation says nothing, so no time is bounded. If a step fails,
the exit code is 1 and the output says what failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROUNDS: Final = 3
JOB: Final = ("--model", "payload:1MiB", "--clients", "2", "--rounds", str(ROUNDS), "--transport", "tcp", "--json")
# Seconds after which a program that hangs is ended.
SECONDS: Final = 900


def main() -> int:
    """Check the wheel that the command line names. Returns 1 if it has faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("root", type=Path)
    options = parser.parse_args()
    found = re.fullmatch(r"thalweg-.*_(x86_64|aarch64)\.whl", options.wheel.name)
    if found is None:
        raise SystemExit(f"error: {options.wheel.name} names no processor")
    with tempfile.TemporaryDirectory(prefix="thalweg-emulated-") as folder:
        python = installed(options.wheel.resolve(), options.root.resolve(), found[1], Path(folder))
        faults = check(python, Path(folder), found[1])
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if faults else 0


def installed(wheel: Path, root: Path, machine: str, folder: Path) -> Path:
    """Install the wheel for that processor; return a program that is its Python."""
    emulator = shutil.which(f"qemu-{machine}") or shutil.which(f"qemu-{machine}-static")
    pythons = sorted((root / "usr" / "bin").glob("python3.[0-9]*[0-9]"))
    if emulator is None or not pythons:
        raise SystemExit(f"error: there is no qemu-{machine}, or no Python in {root}/usr/bin")
    site = folder / "site"
    given = (
        "--python-platform",
        f"{machine}-manylinux_2_28",
        "--python-version",
        pythons[0].name.removeprefix("python"),
    )
    command = ("pip", "install", "--quiet", "--only-binary", ":all:", "--target", str(site), *given, str(wheel))
    run(folder, sys.executable, "-m", "uv", *command)
    # The name that Python gets is the one of this program, which it starts for its own processes.
    program = folder / "python"
    words = [emulator, "-L", str(root), "-0", str(program), str(pythons[0])]
    program.write_text(
        f"#!/bin/sh\nPYTHONHOME={shlex.quote(str(root / 'usr'))} PYTHONPATH={shlex.quote(str(site))} exec "
        f'{shlex.join(words)} "$@"\n'
    )
    program.chmod(0o755)
    return program


def check(python: Path, folder: Path, machine: str) -> list[str]:
    """Run the commands, print what they found, and return the faults."""
    emulated = run(folder, str(python), "-c", "import platform; print(platform.machine())").strip()
    report = json.loads(run(folder, str(python), "-m", "thalweg", "doctor", "--json"))
    result = json.loads(run(folder, str(python), "-m", "thalweg", "run", *JOB))
    checks, rounds = report["checks"], result["rounds"]
    print(f"under emulation of {emulated}: {len(checks)} checks of thalweg doctor, {len(rounds)} rounds over tcp")
    wrong = {
        f"Python runs on {emulated}": emulated != machine,
        "thalweg doctor found nothing": not checks,
        f"thalweg run had {len(rounds)} rounds of {ROUNDS}": len(rounds) != ROUNDS,
    }
    return [fault for fault, is_so in wrong.items() if is_so]


def run(folder: Path, *command: str) -> str:
    """Run a program in a folder; return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise SystemExit(f"error: {' '.join(command)} ended with {done.returncode}: {said}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
