"""The figures and spans of a round, and what a tracker's process does with them."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest

from tests.outcomes import outcome_of
from thalweg import extras, trackers
from thalweg.errors import PackageError, PlanError, RecordError
from thalweg.outcome import Entry
from thalweg.plan import Plan
from thalweg.record import entry
from thalweg.record.journal import Follower, Journal
from thalweg.record.spans import spans_of
from thalweg.trackers import Run
from thalweg.trackers.figures import MOST, client_means, figures
from thalweg.trackers.process import follow


def a_round(number: int = 1, **known: Any) -> Entry:
    return entry(outcome_of(round=number, **known), {}, None)


def reporting(*reports: tuple[int, dict[str, Any]], state: str = "whole") -> Entry:
    parts = [
        {"client": f"c{at}", "samples": samples, "metrics": metrics, "state": state}
        for at, (samples, metrics) in enumerate(reports)
    ]
    return a_round(participants=parts)


def test_metrics_of_clients_are_means_weighted_by_samples() -> None:
    made = reporting((30, {"error": 1.0, "name": "anna", "done": True}), (10, {"error": 5, "rare": 7}))
    assert client_means(made) == {"error": 2.0, "rare": 7.0}
    shown = figures(made)
    assert (shown["clients/error"], shown["clients/rare"]) == (2.0, 7.0)
    assert (shown["round/seconds"], shown["round/updates"], shown["bytes/up"]) == (1.0, 2.0, 1.0)
    assert "model/accuracy" not in shown


def test_clients_whose_update_does_not_count_have_no_part_in_the_means() -> None:
    assert client_means(reporting((1, {"error": 1.0}), state="late")) == {}


def test_without_samples_all_clients_weigh_the_same() -> None:
    assert client_means(reporting((0, {"error": 1.0}), (0, {"error": 2.0}))) == {"error": 1.5}


def test_numbers_that_are_not_finite_and_names_beyond_the_limit_are_left_out() -> None:
    shown = figures(reporting((1, {"bad": math.nan, "good": 1.0}), (1, {"worse": math.inf})))
    assert "clients/good" in shown
    assert not {"clients/bad", "clients/worse"} & shown.keys()
    many = reporting(*((1, {f"m{client}-{at}": 1.0 for at in range(64)}) for client in range(6)))
    assert sum(name.startswith("clients/m") for name in figures(many)) == MOST


def test_a_node_of_a_graph_reports_as_a_client_does() -> None:
    made = a_round()
    made["nodes"] = {"a": {"samples": 1, "metrics": {"error": 1.0}}, "b": {"samples": 3, "metrics": {"error": 5.0}}}
    assert client_means(made) == {"error": 4.0}


def test_a_round_is_a_span_around_its_transfers() -> None:
    ways = [
        {"client": "a", "direction": "down", "send_start": 1.0, "send_end": 1.2, "receive_end": 1.3},
        {"client": "a", "direction": "up", "send_start": 1.1, "receive_start": 1.5, "receive_end": 2.5},
        {"client": "b", "direction": "up"},
    ]
    spans = spans_of(a_round(7, seconds=1.0, transfers=ways))
    assert spans is not None
    whole, inner = spans
    assert (whole.what, whole.start, whole.end, whole.facts["round"]) == ("round 7", 1.0, 2.5, 7)
    assert [(one.what, one.start, one.end) for one in inner] == [("receive model", 1.0, 1.2), ("send update", 1.5, 2.5)]
    assert spans_of(a_round()) is None


class Written:
    """A tracker that remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin(self, run: Run) -> None:
        self.calls.append(f"begin {run.name}")

    def round(self, entry: Entry) -> None:
        self.calls.append(f"round {entry['round']}")

    def end(self, status: str) -> None:
        self.calls.append(status)


@pytest.mark.parametrize(
    ("told", "status"), [(b"\n\ncomplete\n", "complete"), (b"\ninterrupted\n", "interrupted"), (b"\n", "killed")]
)
def test_a_tracker_gets_the_rounds_after_the_resumed_one_and_the_end(told: bytes, status: str) -> None:
    tracker = Written()
    follow(tracker, Run("r", {}, after=2), iter([a_round(at) for at in (1, 2, 3, 4)]), io.BytesIO(told))
    assert tracker.calls == ["begin r", "round 3", "round 4", status]


def test_a_follower_waits_for_the_rest_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    with Follower(path) as follower:
        assert list(follower) == []
        journal.append(a_round(1))
        journal.append(a_round(2))
        assert [one["round"] for one in follower] == [1, 2]
        with path.open("ab") as other:
            other.write(b'{"round": 3')
        assert list(follower) == []
        with path.open("ab") as other:
            other.write(b"}\nnonsense\n")
        assert next(follower) == {"round": 3}
        with pytest.raises(RecordError, match="line 4 of"):
            next(follower)
    journal.close()


@pytest.mark.parametrize("words", ["tensorboard", "tensorboard:", "neptune", "", ":here"])
def test_unknown_trackers_and_places_are_refused(words: str) -> None:
    with pytest.raises(PlanError, match=r"track in \[record\]"):
        Plan.of({"record": {"track": [words]}})


def test_one_tracker_may_be_a_text() -> None:
    assert Plan.of({"record": {"track": "mlflow:sqlite:///a.db"}}).record.track == ["mlflow:sqlite:///a.db"]


def test_a_missing_package_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "has", lambda _package: False)
    with pytest.raises(
        PackageError, match=r"the tracker tensorboard needs the package tensorboardX.*thalweg\[trackers\]"
    ):
        trackers.require(["tensorboard:here"])
