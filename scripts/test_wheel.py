"""Installs a wheel as a user does, into a new virtual environment, and uses it there: test_wheel.py WHEEL [--locked].

With ``--locked`` its dependencies have the versions of requirements/dev.lock. If a step fails, the exit code is 1 and
the output says what failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
LARGEST: Final = 25_000_000
SECONDS: Final = 600
# Files of the package that are not Python code.
DATA: Final = ("thalweg/_core.abi3.so", "thalweg/py.typed", "thalweg/lab/guest/build.sh")
PAYLOAD: Final = ("--model", "payload:8MiB", "--clients", "4", "--rounds", "3")


def main() -> int:
    """Check the wheel that the command line names. Returns 1 if it has faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--locked", action="store_true")
    options = parser.parse_args()
    faults = check(options.wheel.resolve(), locked=options.locked)
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if faults else 0


def check(wheel: Path, *, locked: bool) -> list[str]:
    """Check a wheel, print each step, and return the faults."""
    size = wheel.stat().st_size
    print(f"{wheel.name}: {size / 1e6:.1f} MB")
    faults = [f"it has {size} bytes, more than {LARGEST}"] if size > LARGEST else []
    names = set(zipfile.ZipFile(wheel).namelist())
    faults += [f"it lacks {name}" for name in DATA if name not in names]
    faults += [f"it is not abi3: {wheel.name}"] if "-abi3-" not in wheel.name else []
    with tempfile.TemporaryDirectory(prefix="thalweg-wheel-") as folder:
        return faults + used(wheel, Path(folder), locked=locked)


def used(wheel: Path, folder: Path, *, locked: bool) -> list[str]:
    """Install the wheel in a folder, run a user's first commands, and return the faults."""
    began = time.monotonic()
    python = folder / "env" / "bin" / "python"
    pins = ["--constraint", str(ROOT / "requirements" / "dev.lock")] if locked else []
    run(folder, sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, str(folder / "env"))
    run(folder, sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python), *pins, str(wheel))
    print(f"installed in {time.monotonic() - began:.1f} s")
    thalweg = str(python.parent / "thalweg")
    place = run(folder, str(python), "-I", "-c", "import thalweg; print(thalweg.__file__)").stdout.strip()
    checks = json.loads(run(folder, thalweg, "doctor", "--json").stdout)
    began = time.monotonic()
    result = json.loads(run(folder, thalweg, "run", *PAYLOAD, "--json").stdout)
    print(f"thalweg run: {time.monotonic() - began:.1f} s")
    faults = [] if Path(place).is_relative_to(folder) else [f"thalweg is {place}, not what was installed"]
    faults += [] if checks else ["thalweg doctor found nothing"]
    rounds = result.get("rounds", [])
    faults += [] if len(rounds) == 3 else [f"thalweg run had {len(rounds)} rounds of 3"]
    record = folder / result["record"]
    faults += [] if (record / "manifest.json").is_file() else [f"there is no record in {record}"]
    return faults


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, without this environment's PYTHONPATH and similar variables."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX")
    environment: dict[str, Any] = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    if done.returncode:
        output = (done.stderr or done.stdout).strip()
        raise SystemExit(f"error: {' '.join(command)} ended with {done.returncode}: {output}")
    return done


if __name__ == "__main__":
    sys.exit(main())
