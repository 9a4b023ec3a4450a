"""An outcome has the same fields as the core reports it, and as users and records get it."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.outcomes import outcome_of
from thalweg import outcome, wire
from thalweg.outcome import core
from thalweg.trees import answers, counters

ROOT = Path(__file__).parents[1]


def test_the_tables_are_made_of_the_dataclasses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    script = import_module("outcome_tables")
    assert script.TABLES.read_text() == script.module(), "run .venv/bin/python scripts/outcome_tables.py --write"


# Modules of the classes that answers of nodes are derived from.
REPORTED = (core.__name__, counters.__name__)
ANSWERS = [one for one in vars(answers).values() if isinstance(one, type) and is_dataclass(one)]
LIMITED = [one for one in ANSWERS if one.__bases__[0].__module__ in REPORTED]


@pytest.mark.parametrize("kind", LIMITED)
def test_an_answer_of_a_node_states_the_limits_of_each_field(kind: Any) -> None:
    assert {one.name for one in fields(kind.__bases__[0])} <= set(kind.__annotations__)


def test_usage_and_evaluation_are_left_out_until_they_are_checked() -> None:
    (part,) = wire.values_of(outcome_of(participants=[{"client": "a"}]))["participants"]
    assert set(part) == {"client", "state", "samples", "metrics", "coverage", "reason"}


@pytest.mark.parametrize(
    ("fold", "seconds"),
    [
        (None, None),
        ({"folded": True, "replies": 1, "errors": 0}, None),
        ({"uncovered_bytes": 0, "completion_seconds": 0.5, "finish_seconds": 0.1}, 0.5),
        ({"uncovered_bytes": 0}, None),
    ],
)
def test_the_completion_time_is_known_where_updates_were_added_up(fold: Any, seconds: float | None) -> None:
    entry: Any = {"fold": fold}
    assert outcome.completion_seconds(entry) == seconds
