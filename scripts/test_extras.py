"""Runs the tests that need the extras ``lm`` (peft and transformers) or ``ray``, and checks the licences of all extras.

``requirements/extras.lock`` pins what these two need besides ``requirements/dev.lock``. It is installed into a folder
of its own, which is removed again, and is used with the packages of ``.venv``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
LOCK: Final = "requirements/extras.lock"
TESTS: Final = ("tests/models/test_gpt2.py", "tests/job/test_engines.py", "tests/e2e/test_ray.py")
#: Without one of these packages, tests would be skipped.
IMPORTS: Final = "import peft, ray, transformers"


def main() -> int:
    """Install the packages, check their licences, and run the tests; return 1 if any of that fails."""
    with tempfile.TemporaryDirectory(prefix="thalweg-extras-") as folder:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((folder, str(ROOT)))}

        def python(*words: str) -> bool:
            return subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, check=False).returncode == 0

        install = ("uv", "pip", "install", "--quiet", "--require-hashes", "--no-deps", "--target", folder, "-r", LOCK)
        if not python("-m", *install) or not python("-c", IMPORTS):
            return 1
        licences = python("scripts/check_licences.py")
        return 0 if python("-m", "pytest", "-q", *TESTS) and licences else 1


if __name__ == "__main__":
    sys.exit(main())
