"""Measuring a node's capacity and the costs of its work in live rounds."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from thalweg import machine
from thalweg.errors import PlanError, RoundError
from thalweg.job.tree import calibration
from thalweg.job.tree.calibration import Step, calibrated
from thalweg.outcome.core import WorkSpan
from thalweg.plan import Plan
from thalweg.plan.bound import Loopback
from thalweg.sections import toml
from thalweg.sections.trees import CostsSection


def fold(worker: int, end: float, updates: int = 1) -> WorkSpan:
    return WorkSpan(worker, "fold", 0.0, end, updates)


@pytest.mark.parametrize(
    ("folds", "clients", "when"),
    [
        ([fold(1, 2.0), fold(1, 4.0)], 2, 3.0),
        ([fold(1, 2.0), fold(2, 4.0)], 2, 3.0),
        ([fold(1, 2.0, 2), fold(2, 4.0, 2)], 2, 4.0),
        ([fold(1, 1.0, 3), fold(1, 5.0)], 4, 2.0),
    ],
    ids=["one worker", "whole updates", "ranges: the slower worker", "passes of several"],
)
def test_an_update_is_in_the_sums_when_all_its_workers_have_it(folds: Any, clients: int, when: float) -> None:
    assert calibration._folded(folds, clients) == when


def test_costs_follow_from_passes_with_few_and_many_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass takes 1 ms for each update, and 3 ms for the sums. One of the passes was disturbed."""
    monkeypatch.setattr(calibration, "loopback", lambda _size, _streams: Loopback(2e9, 2e9, 2e9, 1e-3))
    passes = [(n, 0.001 * n + 0.003) for n in (1, 1, 1, 2, 8, 8, 8)] + [(1, 0.9), (20, 5.0)]
    costs = calibration._costs(passes, 1_000_000, 1.0, 25e-6)
    assert costs.model_dump(exclude_none=True) == {
        "fold": 1_000_000_000,
        "sums": 333_333_333,
        "hand_over": 25e-6,
        "socket": 2_000_000_000,
    }
    assert calibration._costs(passes, 1_000_000, 0.5, None).fold == 500_000_000


def test_what_was_not_measured_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "loopback", lambda _size, _streams: None)
    assert calibration._costs([(1, 0.001)], 1000, 1.0, None) == CostsSection(fold=1_000_000)
    assert calibration._costs([(1, 0.004), (2, 0.001)], 1000, 1.0, None) == CostsSection()


class Growing:
    """A node whose updates take 10 ms each as long as at most 300 arrive in a second."""

    def step(self, gap: float) -> Step:
        return Step(1 / gap, 0.01 if 1 / gap < 300 else 0.05)


class Saturated:
    def step(self, _gap: float) -> Step:
        return Step(50.0, 0.01)


def test_the_rate_grows_until_updates_take_clearly_longer() -> None:
    notes: list[str] = []
    steps, ended = calibration._steps(Growing(), 500, 4, float("inf"), notes.append)  # type: ignore[arg-type]
    assert ended == "the time of an update rose"
    assert steps[-1].rate >= 300 > steps[-2].rate
    assert len(notes) == len(steps)
    assert calibration._knee(steps).capacity == int(steps[-1].rate * steps[-1].seconds) * 1000


def test_calibration_ends_when_clients_cannot_send_faster() -> None:
    steps, ended = calibration._steps(Saturated(), 500, 4, float("inf"), lambda _: None)  # type: ignore[arg-type]
    assert (len(steps), ended) == (1, "clients cannot send faster")
    with pytest.raises(RoundError, match="time was too short"):
        calibration._knee(steps)


def test_calibration_ends_when_its_time_is_over() -> None:
    assert calibration._steps(Growing(), 500, 4, 0.0, lambda _: None) == ([], "time is over")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"model": {"name": "lenet"}}, "is trained, which is no part of a node's work"),
        ({"model": {"name": "payload:900GB"}}, "there is memory for 0 updates"),
        ({"model": {"name": "payload:1MiB"}, "job": {"clients": 1}}, "Give --clients; at least two"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(table: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError) as caught:
        calibrated(Plan.of(table), 1.0, lambda _: None)
    assert said in str(caught.value)


@pytest.mark.skipif(sys.platform != "linux", reason="workers share memory as Linux alone does")
@pytest.mark.parametrize("split", ["ranges", "clients"])
def test_a_live_node_is_calibrated_and_what_it_prints_is_a_plan(split: str) -> None:
    plan = Plan.of(
        {"model": {"name": "payload:1MiB"}, "job": {"clients": 4}, "tree": {"workers": 2, "split": split}},
    )
    notes: list[str] = []
    calibration = calibrated(plan, 60.0, notes.append)
    assert calibration.capacity >= 1
    assert len(calibration.steps) >= 2
    assert [step.rate for step in calibration.steps] == sorted(step.rate for step in calibration.steps)
    assert calibration.ended in ("the time of an update rose", "clients cannot send faster", "time is over")
    pasted = Plan.of(toml.loads(calibration.toml, "it"))
    assert pasted.nodes is not None
    assert pasted.tree is not None
    assert (pasted.nodes.capacity, pasted.nodes.cores) == (calibration.capacity, machine.cores())
    assert pasted.tree.costs is not None
    assert pasted.tree.costs == calibration.costs
