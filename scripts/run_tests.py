"""Runs all tests: Rust, documents, Python. It runs all suites even if one fails.

The last lines have the totals and, of each suite that failed, the lines that say what failed.

Most Python tests wait for processes that they start, so as many run side by side as there are cores, eight at most.
Arguments are passed to pytest; then only the Python tests are run, one after the other unless ``-n`` says otherwise.
``THALWEG_FUZZ_FRAMES`` is the number of damaged frames for the wire decoders (default 100,000; `make fuzz` sets ten
million), and ``PROPTEST_RNG_SEED`` the seed of property tests (default 1).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import usage

ROOT: Final = Path(__file__).parents[1]
# Environment of Rust's tests: the number of damaged frames to try, and a fixed seed of property tests, so that results
# can be repeated. Most tests wait for timers, sockets or brokers, so eight run at once on any machine.
TEST_ENVIRONMENT: Final = {"THALWEG_FUZZ_FRAMES": "100000", "PROPTEST_RNG_SEED": "1", "RUST_TEST_THREADS": "8"}
MOST_AT_ONCE: Final = 8
# The last line that libtest prints for a program, and the last line that pytest prints.
RUST: Final = re.compile(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
PYTHON: Final = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|deselected)\b")
CLOSING: Final = re.compile(r"^=*\s?(\d+ (passed|failed|errors?|skipped|deselected)\b|no tests ran).* in [\d.]+s")
PASSED: Final = re.compile(r"(test .* \.\.\. ok|successes:|    \w+(::\w+)*|running \d+ tests?|)\s*")
# What names a failure: a test of libtest or pytest, an error of cargo, and the program that died with its signal.
FAILURE: Final = re.compile(
    r"test .* \.\.\. FAILED|(FAILED|ERROR) tests/.*|error(\[\w+\])?:? .*"
    r"|\s*process didn't exit successfully: .*|\s+`-p .*"
)
MOST_FAILURES: Final = 40
COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")

Count = Callable[[str, "Counter[str]"], None]


def main() -> int:
    """Run the suites; return 0 if all passed."""
    chosen = sys.argv[1:]
    if {"-h", "--help"} & set(chosen):
        usage.parser(__doc__).parse_args(["--help"])
    began = time.monotonic()
    # The extension module cannot be linked outside of a Python process. The Python tests test it.
    cargo = ["cargo", "test", "--workspace", "--exclude", "thalweg-py", "--no-fail-fast"]
    # The default build has no baselines. The tests of a build with them cover all other code too.
    features = ["thalweg-runtime/as-in-tests"]
    features += [] if os.environ.get("BASELINES") == "0" else ["thalweg-runtime/baselines"]
    cargo += ["--features", ",".join(features)]
    cargo += ["--locked"] if os.environ.get("CI") else []
    colour = ["--color=yes"] if sys.stdout.isatty() else []
    counts: dict[str, Counter[str]] = {}
    failed: dict[str, list[str]] = {}
    if not chosen:
        environment = {name: os.environ.get(name, value) for name, value in TEST_ENVIRONMENT.items()}
        failed |= run("Rust tests", [*cargo, "--", "--show-output"], count_rust, counts, environment)
        failed |= run("documents", [sys.executable, "scripts/check_docs.py"], count_nothing, counts)
    pytest = [sys.executable, "-m", "pytest", "-q", *colour, *(chosen or side_by_side())]
    failed |= run("Python tests", pytest, count_python, counts)
    print(totals(counts, time.monotonic() - began))
    for what, lines in failed.items():
        print(f"FAILED: {what}", *lines[:MOST_FAILURES], sep="\n  ")
    return 1 if failed else 0


def side_by_side() -> list[str]:
    """Return pytest's arguments for several processes. A process that has finished takes over tests of another."""
    return ["-n", str(min(os.cpu_count() or 1, MOST_AT_ONCE)), "--dist", "worksteal", "--durations", "25"]


def run(
    what: str, command: list[str], count: Count, counts: dict[str, Counter[str]], more: Mapping[str, str] | None = None
) -> dict[str, list[str]]:
    """Run a suite, print its output line by line, and count its tests.

    If it failed, return its name with the lines that name failures, else nothing.
    """
    print(f"==> {what}: {' '.join(command[1:] if command[0] == sys.executable else command)}", flush=True)
    counts[what] = Counter()
    began = time.monotonic()
    failures = []
    with start(command, more or {}) as process:
        for line in process.stdout or ():
            if shown(line):
                sys.stdout.write(line)
                sys.stdout.flush()
            plain = COLOURS.sub("", line)
            count(plain, counts[what])
            if FAILURE.fullmatch(plain.rstrip()):
                failures.append(plain.strip())
    code = process.returncode
    verdict = "done" if code == 0 else f"FAILED with exit code {code}"
    print(f"==> {what}: {verdict} in {time.monotonic() - began:.1f} s", flush=True)
    return {} if code == 0 else {what: failures}


def start(command: list[str], more: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a suite with ``more`` in its environment. Its output and its errors come here as one stream."""
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def shown(line: str) -> bool:
    """Return whether to print a line: not libtest's names of passed tests, but all output of tests."""
    return not PASSED.fullmatch(line)


def count_rust(line: str, counter: Counter[str]) -> None:
    """Count libtest's closing lines, and the tests that print that they are skipped."""
    if match := RUST.search(line):
        for word, number in zip(("passed", "failed", "ignored"), match.groups(), strict=True):
            counter[word] += int(number)


def count_python(line: str, counter: Counter[str]) -> None:
    """Count pytest's closing line."""
    if CLOSING.match(line):
        for number, word in PYTHON.findall(line):
            counter[word.rstrip("s") if word.startswith("error") else word] += int(number)


def count_nothing(line: str, counter: Counter[str]) -> None:
    """Count nothing: the documents are not tests."""


def totals(counts: Mapping[str, Counter[str]], seconds: float) -> str:
    """Return the closing line."""
    total: Counter[str] = Counter()
    for counter in counts.values():
        total.update(counter)
    parts = [f"{number} {word}" for word, number in total.items() if number or word in ("passed", "failed")]
    each = [f"{what}: {counter['passed']} passed" for what, counter in counts.items() if counter]
    return f"total: {', '.join(parts) or 'nothing ran'} in {seconds:.0f} s ({'; '.join(each)})"


if __name__ == "__main__":
    sys.exit(main())
