"""A job that needs more address space than a batch system's limit ends with an error message."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT = 3_000_000 << 10


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_AS is Linux's")
def test_a_job_beyond_the_limit_is_an_error_in_two_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "thalweg", "run", "--model", "payload:2GiB", "--clients", "2", "--rounds", "1"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    *_, error, hint = done.stderr.splitlines()
    assert error.startswith("error: "), done.stderr
    assert "ulimit -v" in error, done.stderr
    assert hint.startswith("hint: "), done.stderr
    assert "backtrace" not in done.stderr
