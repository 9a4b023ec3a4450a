"""What a client of the command line says while it joins."""

from __future__ import annotations

import threading

import pytest

from thalweg.errors import CoreError
from thalweg.job.common import joining
from thalweg.plan.options import CoreOptions
from thalweg.transports.links import Tls

URL = "tcp://127.0.0.1:7070"


def options(token: str | None = None, tls: Tls | None = None) -> CoreOptions:
    return {"transport": {"tls": tls}, "token": token, "timeout": 60.0}


def test_a_client_that_waits_says_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "SILENCE_SECONDS", 0.0)
    said, waits = list[str](), threading.Event()

    def note(text: str) -> None:
        said.append(text)
        if "not answered" in text:
            waits.set()

    with joining.joining(URL, options(), note):
        assert waits.wait(60)
    assert said == [f"joining {URL}", f"{URL} has not answered yet; trying for 60 s in all (--timeout)"]


def test_a_client_that_has_joined_says_no_more() -> None:
    before = threading.active_count()
    said = list[str]()
    with joining.joining(URL, options(), said.append):
        timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    for timer in timers:
        timer.join(60)
    assert said == [f"joining {URL}"]
    assert threading.active_count() <= before


@pytest.mark.parametrize(
    ("kind", "token", "hint"),
    [("security", None, "--token-file"), ("security", "t", "as the core says"), ("closed", None, "as the core says")],
)
def test_a_client_without_a_token_is_told_of_the_option(kind: str, token: str | None, hint: str) -> None:
    with pytest.raises(CoreError, match="the peer speaks TLS") as refused, joining.joining(URL, options(token), print):
        raise CoreError("the peer speaks TLS, this end does not", "as the core says", kind)
    assert hint in refused.value.hint
    assert refused.value.kind == kind
