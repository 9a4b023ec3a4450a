"""A client process of ``thalweg run``: any exception of its training is reported to the server and the run."""

from __future__ import annotations

from typing import Any

import pytest

from thalweg import _core
from thalweg.job.common import fleet
from thalweg.job.star import worker

SPEC: dict[str, Any] = {
    "name": "c", "url": "memory://a:0", "options": {}, "config": {"model": "payload:4KB"}, "data_root": None,
    "threads": None,
}  # fmt: skip


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The list of reasons with which the client leaves; the test's client stores them there."""
    words: list[str] = []

    class Client:
        def __init__(self, *_: object) -> None:
            pass

        def close(self, reason: str) -> None:
            words.append(reason)

    monkeypatch.setattr(_core, "Client", Client)
    return words


def test_a_client_that_is_done_says_so(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "take_part", lambda *_: [{"round": 1}])
    assert worker._run(SPEC, worker._find) is None
    assert said == ["the client is done"]


def test_any_exception_reaches_the_server_and_the_run(
    said: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("no batches")

    monkeypatch.setattr(fleet, "take_part", fails)
    failure = worker._run(SPEC, worker._find)
    assert failure is not None
    assert failure.cause == "ZeroDivisionError: no batches"
    assert said == ["ZeroDivisionError: no batches"]
    assert "in fails" in capsys.readouterr().err, "the log says where"
