"""Options of transports as text."""

from __future__ import annotations

import pytest

from thalweg.errors import PlanError
from thalweg.transports.registry import own_options


def test_options_are_flags_numbers_or_text() -> None:
    texts = [
        "retain=true",
        "confirms=false",
        "qos=2",
        "pattern=pubsub",
        "topic=a=b",
        "empty=",
        "budget=0.02",
        "version=3.1.1",
    ]
    assert own_options(texts) == {
        "retain": True,
        "confirms": False,
        "qos": 2,
        "pattern": "pubsub",
        "topic": "a=b",
        "empty": "",
        "budget": 0.02,
        "version": "3.1.1",
    }
    assert own_options([]) == {}


@pytest.mark.parametrize("text", ["qos", "=1", ""])
def test_what_is_no_option_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="KEY=VALUE"):
        own_options([text])
