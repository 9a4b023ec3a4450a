"""The ways in which a worker process can end, and the reason that is reported for each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from thalweg.bench import process


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("import os; os.kill(os.getpid(), 9)", "its process was killed by signal 9"),
        ("raise SystemExit(3)", "its process ended with exit code 3"),
        ("print('no JSON')", "its process ended with exit code 0"),
        ("""print('{"error": {"cause": "c", "hint": "m"}}'); raise SystemExit(1)""", "c"),
        ("import time; time.sleep(600)", "it took longer than 500.0 ms"),
    ],
)
def test_failures(script: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-c", script))
    limit = 0.5 if "sleep" in script else None
    failure = process.execute(tmp_path / "plan.toml", tmp_path / "log", limit)
    assert failure is not None
    assert failure.cause == cause


def test_a_result_and_what_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import json, sys; print('words', file=sys.stderr); print('{}'); "
        "open('plan', 'w').write(json.load(sys.stdin)['plan'])"
    )
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-c", script))
    monkeypatch.chdir(tmp_path)
    assert process.execute(tmp_path / "plan.toml", tmp_path / "log", None) is None
    assert (tmp_path / "plan").read_text() == str(tmp_path / "plan.toml")
    assert (tmp_path / "log").read_text() == "words\n"
