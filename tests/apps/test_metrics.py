"""Metrics: what an app may report, which reported values the server keeps, and how often it warns."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.outcomes import outcome_of, outcome_table
from thalweg import _core
from thalweg.apps.metrics import LONGEST_TEXT, MOST, MOST_NOTES, Intake, checked_usage, of_clients, offered
from thalweg.errors import MetricsError
from thalweg.outcome.core import ClientUsage, Evaluation, Participant
from thalweg.record.rows import TABLES
from thalweg.record.tables import entry, rows, schema
from thalweg.ui import strict_json


def sent(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that the server keeps of an honest client's metrics."""
    part, notes = received(json.loads(offered(metrics, {"train_seconds": 1.5})))
    assert notes == []
    assert part.usage == ClientUsage(train_seconds=1.5)
    assert isinstance(part.metrics, dict)
    return part.metrics


def test_numbers_short_strings_and_truth_arrive_as_they_are() -> None:
    metrics = {"loss": 0.25, "steps": 7, "converged": True, "phase": "warm-up", "Größe": -0.0, "train_seconds": 99.0}
    assert sent(metrics) == metrics
    assert sent({}) == {}
    assert sent({"not known": None}) == {}


def test_scalars_of_other_libraries_become_numbers() -> None:
    metrics = {
        "a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True), "d": np.float64(0.25), "e": torch.tensor(2.5),
        "f": torch.tensor(True), "g": np.array(7),
    }  # fmt: skip
    arrived = sent(metrics)
    assert arrived == {"a": 0.5, "b": 3, "c": True, "d": 0.25, "e": 2.5, "f": True, "g": 7}
    assert [type(value) for value in arrived.values()] == [float, int, bool, float, float, bool, int]


def test_non_finite_metrics_are_kept() -> None:
    arrived = sent({"loss": math.nan, "best": math.inf, "worst": -math.inf, "half": np.float16("nan")})
    assert math.isnan(arrived["loss"])
    assert math.isnan(arrived["half"])
    assert (arrived["best"], arrived["worst"]) == (math.inf, -math.inf)
    text = offered({"loss": math.nan}, {})
    assert json.loads(text, parse_constant=lambda _: pytest.fail("no strict JSON")) == {
        "metrics": {"loss": "NaN"},
        "usage": {},
    }


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"loss": torch.zeros(3, 2)}, r'"loss", but it is a Tensor of shape \[3, 2\]. .*float\(loss.mean\(\)\)'),
        ({"loss": np.zeros(1)}, "ndarray"),
        ({"each": [1.0, 2.0]}, "it is a list"),
        ({"each": {"a": 1}}, "it is a dict"),
        ({"text": "x" * (LONGEST_TEXT + 1)}, "a string is one line"),
        ({"text": "two\nlines"}, "a string is one line"),
        ({"": 1}, "a name is"),
        ({"x" * 65: 1}, "a name is"),
        ({"a\x1b[31m": 1}, "a name is"),
        ({7: 1}, "a name is"),
        ({"n": 1 << 70}, "63 bits"),
        ({"z": np.complex64(1j)}, "it is a complex"),
        ({f"k{n}": 1 for n in range(MOST + 1)}, f"more than {MOST}"),
        ({f"k{n}": "x" * LONGEST_TEXT for n in range(MOST)}, "fewer or shorter"),
    ],
)
def test_an_honest_client_hears_the_cause_early(metrics: dict[Any, Any], words: str) -> None:
    with pytest.raises(MetricsError, match=words):
        offered(metrics, {})


def received(metrics: Any, intake: Intake | None = None) -> tuple[Participant, list[str]]:
    text = json.dumps(outcome_table(participants=[{"metrics": metrics}]))
    outcome, notes = (intake or Intake()).outcome(text)
    (part,) = outcome.participants
    return part, notes


@pytest.mark.parametrize(
    "metrics",
    [None, 7, "no JSON at all \x1b[2J", [], {"train_seconds": 1}, {"metrics": [1]}, {"metrics": None, "usage": "x"}],
)
def test_values_that_are_no_metrics_are_dropped(metrics: Any) -> None:
    part, notes = received(metrics)
    assert (part.metrics, part.usage) == ({}, ClientUsage())
    assert all(_core.plain_text(note, 1024) == note for note in notes)


@pytest.mark.parametrize("value", ["1", None, [], {}, True, -1, 1e300, "NaN", "Infinity"])
@pytest.mark.parametrize("name", ["train_seconds", "cpu_seconds", "peak_rss_bytes"])
def test_usage_that_cannot_be_is_dropped_with_a_note(name: str, value: Any) -> None:
    part, notes = received({"usage": {name: value, "congestion_control": "cubic"}})
    assert part.usage == ClientUsage(congestion_control="cubic")
    assert notes == [f'c: its metric "{name}" is dropped: no client\'s process uses that']


def test_notes_name_client_key_and_reason_once_and_then_stop() -> None:
    intake = Intake()
    bad = {"metrics": {"loss": [1], "good": 2}}
    part, notes = received(bad, intake)
    assert part.metrics == {"good": 2}
    assert notes == ['c: its metric "loss" is dropped: it is a list']
    assert received(bad, intake)[1] == [], "not each round"
    for number in range(100):
        notes += received({"metrics": {f"new-{number}-{n}": None for n in range(50)}}, intake)[1]
    assert len(notes) == MOST_NOTES + 1
    assert "without a word" in notes[-1]


def anything(rng: random.Random, depth: int = 0) -> Any:
    """Draws any JSON value, as a client may send it."""
    leaves: list[Any] = [
        None,
        True,
        -1,
        10**18,
        1e308,
        -1e-308,
        "",
        "NaN",
        "x\r\ny\x1b]0;\x07",
        "\u202e",
        "é" * 300,
        {},
        [],
    ]
    if depth < 3 and rng.random() < 0.5:
        names = ["metrics", "usage", "train_seconds", "peak_rss_bytes", "congestion_control", "", "a\n", "loss", "€"]
        if rng.random() < 0.7:
            return {rng.choice(names): anything(rng, depth + 1) for _ in range(rng.randrange(6))}
        return [anything(rng, depth + 1) for _ in range(rng.randrange(4))]
    return rng.choice(leaves)


def test_any_reported_value_leaves_the_record_readable() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    rng = random.Random(20)
    intake = Intake()
    for _ in range(2000):
        part, _ = received(anything(rng), intake)
        assert part.usage is not None
        assert checked_usage(part.usage.table()) == (part.usage.table(), {})
        done = entry(replace(OUTCOME, participants=(part,)), {}, None)
        again = json.loads(strict_json.dumps(done), parse_constant=lambda _: pytest.fail("no strict JSON"))
        for name in ("rounds", "participants", "transfers"):
            pyarrow.Table.from_pylist(list(rows(name, [again])), schema=schema(name))


OUTCOME = outcome_of(transfers=[{"client": "c"}])


def test_the_table_of_participants_tells_metrics_from_usage() -> None:
    part, _ = received({"metrics": {"train_seconds": 5, "loss": "NaN"}, "usage": {"train_seconds": 0.5}})
    (row,) = rows("participants", [entry(replace(OUTCOME, participants=(part,)), {}, None)])
    assert row["train_seconds"] == 0.5
    assert json.loads(row["metrics"]) == {"loss": "NaN", "train_seconds": 5}
    assert json.loads(row["usage"]) == {"train_seconds": 0.5}
    assert set(row) == {column.name for column in TABLES["participants"]}


def test_a_record_of_before_there_was_usage_is_read() -> None:
    old: Any = {"client": "c", "state": "whole", "metrics": {"train_seconds": 2.0, "loss": 1.0}}
    done = entry(OUTCOME, {}, None)
    (row,) = rows("participants", [{**done, "clients": [old]}])
    assert row["train_seconds"] == 2.0


@pytest.mark.parametrize(
    ("said", "kept", "dropped"),
    [
        ({"accuracy": 0.5, "loss": 2}, {"accuracy": 0.5, "loss": 2}, []),
        ({"accuracy": "high", "loss": "NaN"}, {"loss": math.nan}, ["accuracy"]),
        ({"accuracy": True, "f1": 0.5}, {}, ["accuracy", "f1"]),
        ([0.5], {}, []),
        (None, {}, []),
    ],
)
def test_what_a_client_says_of_its_own_model_is_checked(said: Any, kept: dict[str, Any], dropped: list[str]) -> None:
    part, notes = received({"metrics": {}, "usage": {}, "evaluation": said})
    assert str(part.evaluation) == str(Evaluation(**kept))
    assert len(notes) == len(dropped)
    assert all(any(f'"{name}"' in note for note in notes) for name in dropped)


def test_the_mean_of_clients_is_of_those_whose_update_counts() -> None:
    said = [("whole", {"accuracy": 0.5}), ("partial", {"accuracy": 0.7}), ("late", {"accuracy": 0.0}), ("whole", {})]
    parts = [{"state": state, "evaluation": evaluation} for state, evaluation in said]
    assert of_clients(outcome_of(participants=parts)) == {"client_accuracy": pytest.approx(0.6)}
    assert of_clients(outcome_of(participants=[{"state": "whole"}])) == {}


def test_what_evaluate_returns_is_a_number_in_the_record() -> None:
    done = entry(OUTCOME, {"accuracy": np.float32(0.5), "loss": torch.tensor(2.0)}, 0.1)
    assert (done["accuracy"], done["loss"]) == (0.5, 2.0)
    entry(OUTCOME, {"confusion": np.zeros((3, 3))}, 0.1)
    for bad in (torch.zeros(2), "high", True):
        with pytest.raises(MetricsError, match="accuracy"):
            entry(OUTCOME, {"accuracy": bad}, 0.1)
