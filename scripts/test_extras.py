"""Runs the tests that need the extras ``lm``, ``ray`` or ``trackers``, and checks the licences of all extras.

``requirements/extras.lock`` pins what lm and ray need besides ``requirements/dev.lock``, and ``trackers.lock`` what
trackers need. Each is installed into a folder of its own, which is removed again, and is used with the packages of
``.venv``. A folder's packages go first: Trackio wants another Pillow than Flower's data sets.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import usage

ROOT: Final = Path(__file__).parents[1]


@dataclass(frozen=True)
class Extras:
    """A lock file, the tests of its packages, and an import: without one of these packages, tests would be skipped."""

    lock: str
    tests: tuple[str, ...]
    imports: str


ALL: Final = (
    Extras(
        "requirements/extras.lock",
        (
            "tests/models/test_gpt2.py",
            "tests/algorithms/test_diloco.py",
            "tests/job/test_engines.py",
            "tests/e2e/test_ray.py",
            "tests/test_starters.py::test_its_own_test_passes[lora]",
        ),
        "import peft, ray, transformers",
    ),
    Extras(
        "requirements/trackers.lock",
        ("tests/trackers",),
        "import alembic, mlflow, opentelemetry.exporter.otlp.proto.http, sqlalchemy, tensorboardX, trackio, wandb",
    ),
)


def main() -> int:
    """Install the packages, check their licences, and run the tests; return 1 if any of that fails."""
    usage.parser(__doc__).parse_args()
    return max([tested(extras) for extras in ALL])


def tested(extras: Extras) -> int:
    """Do the same with the extras of one lock file."""
    with tempfile.TemporaryDirectory(prefix="thalweg-extras-") as folder:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((folder, str(ROOT)))}

        def python(*words: str) -> bool:
            return subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, check=False).returncode == 0

        install = ("uv", "pip", "install", "--quiet", "--require-hashes", "--no-deps", "--target", folder)
        if not python("-m", *install, "-r", extras.lock) or not python("-c", extras.imports):
            return 1
        licences = python("scripts/check_licences.py")
        return 0 if python("-m", "pytest", "-q", *extras.tests) and licences else 1


if __name__ == "__main__":
    sys.exit(main())
