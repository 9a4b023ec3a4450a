"""Builds the guest kernel with ``build.sh``, and tells whether it has been built."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass

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
    process = subprocess.run(
        [guest.HERE / "build.sh"], stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False
    )
    if process.returncode != 0:
        cause, hint = _cause_and_hint(process.stderr)
        raise LabError(f"the guest kernel could not be built: {cause}", hint)
    return Built(str(guest.kernel()), not there, round(time.monotonic() - begun, 1))


def _cause_and_hint(errors: str) -> tuple[str, str]:
    """Return cause and hint from the standard error of ``build.sh``, or its last line as the cause.

    The script's exit code does not tell failures apart. It stays as it is, because the kernel's name depends on the
    script's text.
    """
    lines = errors.strip().splitlines()
    cause = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    hint = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    last = lines[-1] if lines else "it says nothing"
    return (cause or [last])[-1], (hint or ["Look at what it says above; a build goes on where it was"])[-1]


def status() -> Status:
    """Return whether the kernel has been built. Raises LabError if ``build.sh`` cannot say where it would be."""
    path = guest.kernel_path()
    there = path.is_file()
    return Status(there, str(path), path.stat().st_size if there else None)
