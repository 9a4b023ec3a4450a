"""An outcome has the same keys as the core reports it, and as users and records get it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from tests.outcomes import outcome_of
from thalweg import outcome, wire
from thalweg.apps import core_outcome

# Keys that only the record has.
RECORDED = {"source", "target", "congestion_control"}


@pytest.mark.parametrize(
    ("reported", "given", "more"),
    [
        (core_outcome.Outcome, outcome.Outcome, set()),
        (core_outcome.Participant, outcome.Participant, set()),
        (core_outcome.ClientUsage, outcome.Usage, set()),
        (core_outcome.Evaluation, outcome.Quality, set()),
        (core_outcome.Loss, outcome.Loss, set()),
        (core_outcome.Transfer, outcome.Transfer, RECORDED),
    ],
)
def test_both_forms_have_the_same_keys(reported: Any, given: Any, more: set[str]) -> None:
    assert {one.name for one in fields(reported)} | more == set(given.__annotations__)


def test_usage_and_evaluation_are_left_out_until_they_are_checked() -> None:
    (part,) = wire.values_of(outcome_of(participants=[{"client": "a"}]))["participants"]
    assert set(part) == {"client", "state", "samples", "metrics", "coverage", "reason"}
