"""Builds the guest kernel with ``build.sh``, and tells whether it has been built."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from thalweg.errors import LabError
from thalweg.lab import guest


@dataclass(frozen=True)
class Built:
    """The kernel's path, whether it was built now, and the seconds that this took."""

    kernel: str
    built: bool
    seconds: float


@dataclass(frozen=True)
class Status:
    """Whether the kernel is there, its path, and its size in bytes; None if it is missing."""

    there: bool
    kernel: str
    bytes: int | None


def build() -> Built:
    """Build the kernel if it is missing.

    The build's output goes to standard error. Raises LabError if the build fails.
    """
    there, begun = status().there, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        failure = Path(folder) / "failure"
        environment = {**os.environ, "FAILURE": str(failure)}
        process = subprocess.run([guest.HERE / "build.sh"], stdout=sys.stderr, env=environment, check=False)
        if process.returncode != 0:
            lines = failure.read_text().splitlines() if failure.exists() else []
            said = dict(line.split("=", 1) for line in lines)
            cause = said.get("cause", f"its script ended with exit code {process.returncode}")
            hint = said.get("hint", "Look at what it says above; a build goes on where it was")
            raise LabError(f"the guest kernel could not be built: {cause}", hint)
    return Built(str(guest.kernel()), not there, round(time.monotonic() - begun, 1))


def status() -> Status:
    """Return whether the kernel has been built. Raises LabError if ``build.sh`` cannot say where it would be."""
    path = guest.kernel_path()
    there = path.is_file()
    return Status(there, str(path), path.stat().st_size if there else None)
