"""The settings of the proxy's core, and the text of its events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from thalweg.errors import PlanError
from thalweg.transports import proxying

CONNECTION = {"connection": 3, "from": "192.0.2.7:4000", "local": "127.0.0.1:5000"}


def configured(**settings: Any) -> Any:
    base: dict[str, Any] = {"sizes": {}, "own": {}, "option": []}
    return json.loads(proxying.configure(**{**base, **settings}))


def test_missing_settings_are_left_to_the_core() -> None:
    settings = configured(sizes={"buffer": None}, own={"budget": None}, idle=None, listen=":9000")
    assert settings == {"own": {}, "listen": ":9000"}


def test_sizes_and_options_become_numbers() -> None:
    settings = configured(sizes={"reliable": "4KiB"}, own={"budget": 0.1}, option=["window=65536", "budget=0.5"])
    assert settings == {"own": {"window": 65536, "budget": 0.1}, "reliable": 4096}


def test_a_size_that_is_none_is_refused() -> None:
    with pytest.raises(PlanError, match="--buffer: 'much'"):
        configured(sizes={"buffer": "much"})


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            {"event": "listening", "listen": "10.0.0.5:9000", "to": ":7000", "masks": True, "why": None, "holes": "-"},
            "listening at 10.0.0.5:9000 for :7000; holes are told on standard output; Ctrl-C ends it",
        ),
        (
            {"event": "listening", "listen": "h:1", "to": ":7", "masks": False, "why": "no TUN", "holes": "x"},
            "listening at h:1 for :7, as an ordinary TCP proxy: no TUN",
        ),
        (
            {"event": "connection", **CONNECTION, "masks": False},
            "connection 3 from 192.0.2.7:4000: to the server as 127.0.0.1:5000, nothing is masked",
        ),
        (
            {"event": "end", **CONNECTION, "bytes": 2048, "missing": 100, "holes": 2, "returned": 5, "error": None},
            "connection 3 from 192.0.2.7:4000: 2.0 KiB, 100 B of it in 2 holes; 5 B back",
        ),
        (
            {"event": "end", **CONNECTION, "bytes": 0, "missing": 0, "holes": 0, "returned": 0, "error": "server: x"},
            "connection 3 from 192.0.2.7:4000: 0 B, 0 B of it in 0 holes; 0 B back; broken off, server: x",
        ),
        ({"event": "stopped", "connections": 4}, "ended; connections: 4"),
    ],
)
def test_events_in_words(event: dict[str, Any], words: str) -> None:
    assert proxying.words(json.dumps(event)) == words
