"""Runs the tests of Flower apps with other releases of Flower than the one that requirements/dev.lock pins.

``scripts/test_flower.py 1.22.0 1.29.0`` tests these releases. Without arguments it tests the newest one in the package
index. ``nightly`` is Flower's build of last night. Each release is installed into a temporary folder of its own, and
uses the dependencies of the environment.

``--tests DIR``, a checkout of Flower's repository at the same release, also runs Flower's own tests of its strategies,
with the adapter's patches installed. Flower publishes them in neither its wheels nor its source distributions.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
NEWEST: Final = "newest"
NIGHTLY: Final = "nightly"
#: The packages that Flower's own tests need besides pytest.
NEEDED: Final = ("parameterized",)
#: Flower's strategies, in a wheel and, below ``framework/py``, in its repository.
STRATEGIES: Final = Path("flwr", "serverapp", "strategy")


def wanted(release: str) -> str:
    """Return the requirement for a release, as for pip."""
    return {NEWEST: "flwr", NIGHTLY: "flwr-nightly"}.get(release, f"flwr=={release}")


def tests_pass(release: str, checkout: Path | None) -> bool:
    """Install a release, run the tests with it, and print the result."""
    with tempfile.TemporaryDirectory(prefix="thalweg-flower-") as folder:
        install = ["-m", "uv", "pip", "install", "--quiet", "--no-deps", "--target", folder, wanted(release)]
        install += NEEDED if checkout else ()
        if subprocess.run([sys.executable, *install], check=False).returncode:
            return False
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((folder, str(ROOT)))}

        def python(*words: str) -> bool:
            return subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, check=False).returncode == 0

        python("-c", "import flwr; print('Flower', flwr.__version__, 'of', flwr.__file__)")
        passed = python("-m", "pytest", "-q", "tests/flower")
        if checkout is None:
            return passed
        place = Path(folder) / STRATEGIES
        for test in flowers_tests(checkout):
            shutil.copy(test, place)
        print(f"Flower's own tests of its strategies, of {checkout}", flush=True)
        # Without this repository's pytest configuration, which turns warnings into errors.
        alone = ("-q", "-c", os.devnull, "--rootdir", folder, "-p", "tests.flower.patched")
        return python("-m", "pytest", *alone, str(place)) and passed


def flowers_tests(checkout: Path) -> list[Path]:
    """Return Flower's own tests of its strategies. Raises SystemExit if ``checkout`` has none."""
    tests = sorted((checkout / "framework" / "py" / STRATEGIES).glob("*_test.py"))
    if not tests:
        raise SystemExit(f"{checkout} has no tests of strategies; name a checkout of Flower's repository")
    return tests


def main() -> int:
    """Test each release; return 1 if any fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", default=[NEWEST], metavar="RELEASE")
    parser.add_argument("--tests", type=Path, metavar="DIR", help="a checkout of Flower's repository")
    arguments = parser.parse_args()
    passed = {release: tests_pass(release, arguments.tests) for release in arguments.releases}
    for release, good in passed.items():
        print(f"{release}: {'passed' if good else 'FAILED'}")
    return 0 if all(passed.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
