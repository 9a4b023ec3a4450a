"""The guest kernel as a file: building it, and whether it is there."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from thalweg.errors import LabError
from thalweg.lab import guest


def build() -> dict[str, Any]:
    """Build the kernel if it is not there; return its path ``kernel``, whether it was ``built`` now, and ``seconds``.

    What the build says goes to standard error. Raises LabError if it fails.
    """
    there, begun = status()["there"], time.monotonic()
    process = subprocess.run(
        [guest.HERE / "build.sh"], stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False
    )
    if process.returncode != 0:
        cause, mend = _words(process.stderr)
        raise LabError(f"the guest kernel could not be built: {cause}", mend)
    return {"kernel": str(guest.kernel()), "built": not there, "seconds": round(time.monotonic() - begun, 1)}


def _words(said: str) -> tuple[str, str]:
    """Return cause and mend of what the recipe says in its last lines."""
    lines = said.strip().splitlines()
    cause = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    mend = [line.removeprefix("mend: ") for line in lines if line.startswith("mend: ")]
    last = lines[-1] if lines else "it says nothing"
    return (cause or [last])[-1], (mend or ["Look at what it says above; a build goes on where it was"])[-1]


def status() -> dict[str, Any]:
    """Return whether the kernel is ``there``, the path ``kernel``, its size in ``bytes`` (null if it is not there).

    Raises LabError if there can be none on this machine.
    """
    where = subprocess.run([guest.HERE / "build.sh", "--where"], capture_output=True, text=True, check=False)
    if where.returncode != 0:
        cause, mend = _words(where.stderr)
        raise LabError(f"there is no guest kernel: {cause}", mend)
    path = Path(where.stdout.strip())
    there = path.is_file()
    return {"there": there, "kernel": str(path), "bytes": path.stat().st_size if there else None}
