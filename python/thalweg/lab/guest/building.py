"""Builds the guest kernel with ``build.sh``, and tells whether it has been built."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from thalweg.errors import LabError
from thalweg.lab import guest


def build() -> dict[str, Any]:
    """Build the kernel if it is missing; return its path ``kernel``, whether it was ``built`` now, and ``seconds``.

    The build's output goes to standard error. Raises LabError if the build fails.
    """
    there, begun = status()["there"], time.monotonic()
    process = subprocess.run(
        [guest.HERE / "build.sh"], stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False
    )
    if process.returncode != 0:
        cause, hint = _words(process.stderr)
        raise LabError(f"the guest kernel could not be built: {cause}", hint)
    return {"kernel": str(guest.kernel()), "built": not there, "seconds": round(time.monotonic() - begun, 1)}


def _words(said: str) -> tuple[str, str]:
    """Return cause and hint from the output of ``build.sh``, or its last line as the cause."""
    lines = said.strip().splitlines()
    cause = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    hint = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    last = lines[-1] if lines else "it says nothing"
    return (cause or [last])[-1], (hint or ["Look at what it says above; a build goes on where it was"])[-1]


def status() -> dict[str, Any]:
    """Return whether the kernel is ``there``, its path ``kernel``, and its size in ``bytes`` (None if missing).

    Raises LabError if this machine cannot have a guest kernel.
    """
    where = subprocess.run([guest.HERE / "build.sh", "--where"], capture_output=True, text=True, check=False)
    if where.returncode != 0:
        cause, hint = _words(where.stderr)
        raise LabError(f"there is no guest kernel: {cause}", hint)
    path = Path(where.stdout.strip())
    there = path.is_file()
    return {"there": there, "kernel": str(path), "bytes": path.stat().st_size if there else None}
