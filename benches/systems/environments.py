"""Makes the environment of each rival from its lock file, in the folder ``.systems``.

A rival's packages never enter thalweg's own environment, and a rival's script never imports thalweg.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from benches.common import FOLDER, note

LOCKS: Final = FOLDER / "requirements" / "systems"
PLACE: Final = FOLDER / ".systems"
#: The file with the digest of the lock file. It is written last, so that an incomplete environment is made again.
MARK: Final = "lock.sha256"


def names() -> list[str]:
    """Return the names of all environments: those of the lock files."""
    return sorted(path.stem for path in LOCKS.glob("*.lock"))


def python(name: str) -> Path:
    """Return the path of an environment's interpreter, even if the environment does not exist."""
    return PLACE / name / "bin" / "python"


def missing(name: str) -> str | None:
    """Return why an environment cannot be used; None if it was made from the present lock file."""
    mark = PLACE / name / MARK
    if not mark.exists():
        return f"its environment is missing: python -m benches systems --install {name}"
    if mark.read_text() != _digest(name):
        return f"its environment is older than its lock file: python -m benches systems --install {name}"
    return None


def install(name: str) -> str | None:
    """Make an environment, unless it was already made from the present lock file. Return the reason if that fails."""
    if missing(name) is None:
        return None
    note(f"environment {name}")
    folder = PLACE / name
    shutil.rmtree(folder, ignore_errors=True)
    uv = [sys.executable, "-m", "uv"]
    for command in (
        [*uv, "venv", "--quiet", "--python", sys.executable, str(folder)],
        [*uv, "pip", "sync", "--quiet", "--require-hashes", "--python", str(python(name)), str(_lock(name))],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"its packages cannot be installed: {done.stderr.strip()[-500:]}"
    (folder / MARK).write_text(_digest(name))
    return None


def versions(name: str) -> dict[str, str]:
    """Return the version of each package that a lock file pins."""
    pins = [line.split()[0] for line in _lock(name).read_text().splitlines() if "==" in line and line[0].isalnum()]
    return dict(pin.split("==") for pin in pins)


def _lock(name: str) -> Path:
    return LOCKS / f"{name}.lock"


def _digest(name: str) -> str:
    return hashlib.sha256(_lock(name).read_bytes()).hexdigest()
