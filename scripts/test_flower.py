"""Runs the tests of Flower apps with other releases of Flower than the one that requirements/dev.lock pins.

``scripts/test_flower.py 1.22.0 1.29.0`` takes these. Without a release it takes the newest that the package index has,
and ``nightly`` is Flower's build of last night. Each is installed into a folder of its own, which is removed again, and
runs with the dependencies of the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
NEWEST: Final = "newest"
NIGHTLY: Final = "nightly"


def wanted(release: str) -> str:
    """Return what a release is called as a requirement."""
    return {NEWEST: "flwr", NIGHTLY: "flwr-nightly"}.get(release, f"flwr=={release}")


def tests_pass(release: str) -> bool:
    """Install a release and run the tests with it; say what came out."""
    with tempfile.TemporaryDirectory(prefix="thalweg-flower-") as folder:
        install = ["-m", "uv", "pip", "install", "--quiet", "--no-deps", "--target", folder, wanted(release)]
        if subprocess.run([sys.executable, *install], check=False).returncode:
            return False
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((folder, str(ROOT)))}
        show = "import flwr; print('Flower', flwr.__version__, 'of', flwr.__file__)"
        subprocess.run([sys.executable, "-c", show], cwd=ROOT, env=environment, check=False)
        tests = [sys.executable, "-m", "pytest", "-q", "tests/flower"]
        return subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode == 0


def main() -> int:
    """Test each release; return 1 if any fails."""
    releases = sys.argv[1:] or [NEWEST]
    passed = {release: tests_pass(release) for release in releases}
    for release, good in passed.items():
        print(f"{release}: {'passed' if good else 'FAILED'}")
    return 0 if all(passed.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
