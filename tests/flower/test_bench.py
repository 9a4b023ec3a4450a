"""Flower apps are an axis of a bench, as transports are."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from thalweg.bench import BenchPlan, Matrix
from thalweg.bench.measure import measure
from thalweg.bench.process import execute
from thalweg.errors import PlanError
from thalweg.plan import Plan

APPS = Path(__file__).parent / "apps"
MESSAGES = f"flower:{APPS / 'numpy_messages'}"
LEGACY = f"flower:{APPS / 'numpy_legacy'}"


def test_apps_and_their_configurations_are_axes() -> None:
    matrix = {"app": [MESSAGES, LEGACY], "transport": ["tcp", "grpc"], "app.options.num-server-rounds": [1, 2]}
    made = Matrix.of(BenchPlan.of({"matrix": matrix}))
    assert len(made.cells) == 8
    last = made.cells[-1].plan
    assert last.app is not None
    assert (last.app.object, last.app.options, last.scheme) == (LEGACY, {"num-server-rounds": 2}, "grpc")


@pytest.mark.parametrize(
    ("matrix", "cause"),
    [
        ({"app": [f"flower:{APPS / 'nothing'}"]}, "cannot read"),
        ({"app": [MESSAGES], "app.options.epochs": [1]}, "has no run configuration 'epochs'"),
    ],
)
def test_a_cell_that_cannot_be_is_refused_before_anything_runs(matrix: dict[str, list[object]], cause: str) -> None:
    with pytest.raises(PlanError, match=rf"cell 1.*{cause}"):
        Matrix.of(BenchPlan.of({"matrix": matrix}))


@pytest.mark.e2e
@pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="Flower is not installed")
def test_a_cell_runs_the_app_and_is_measured(tmp_path: Path) -> None:
    table = {
        "app": {"object": MESSAGES, "options": {"num-server-rounds": 2}},
        "job": {"clients": 2},
        "record": {"folder": str(tmp_path / "records")},
    }
    path = tmp_path / "plan.toml"
    path.write_text(Plan.of(table).to_toml())
    assert execute(path, tmp_path / "log.txt", None) is None, (tmp_path / "log.txt").read_text()
    (record,) = (tmp_path / "records").iterdir()
    numbers = measure(record)
    assert [row.complete for row in numbers.rounds] == [True, True]
    # Each of two clients has two messages a round, in two rounds. Replies to evaluations have no tensors.
    assert numbers.update_bytes is not None
    assert numbers.wire_bytes is not None
    assert numbers.update_bytes > 0
    assert numbers.wire_bytes > numbers.update_bytes


@pytest.mark.e2e
@pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="Flower is not installed")
def test_a_dry_run_knows_what_an_app_would_send() -> None:
    from thalweg.bench.estimate import Estimate
    from thalweg.flower.run import plan_of, preview
    from thalweg.plan.least import least_seconds

    plan = plan_of(APPS / "numpy_messages", {"job.clients": 2, "transport.url": "tcp", "network": "wifi"})
    previewed = preview(plan)
    assert (previewed.rounds, previewed.clients, previewed.fold) == (3, 2, "auto")
    assert previewed.update_bytes is not None
    assert previewed.update_bytes > 0
    assert previewed.estimate_seconds == least_seconds(plan, previewed.update_bytes, 3) > 0
    (cell,) = Matrix.of(BenchPlan.of({"base": {"job": {"clients": 2}}, "matrix": {
        "app": [MESSAGES], "transport": ["tcp"], "network": ["wifi"],
    }})).cells  # fmt: skip
    assert Estimate([cell]).cell(cell.number) == pytest.approx(previewed.estimate_seconds)
