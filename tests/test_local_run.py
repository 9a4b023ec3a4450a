"""``thalweg.run``: a whole job from Python."""

from __future__ import annotations

import inspect
import logging
from pathlib import Path
from typing import Any

import pytest

import thalweg
from thalweg import errors

APPS = Path(__file__).parent / "small_apps.py"


def plan(folder: Path, of: str = "Good", **more: Any) -> thalweg.Plan:
    job = {"clients": 2, "rounds": 2, **more.pop("job", {})}
    table = {"app": f"{APPS}:{of}", "job": job, "transport": {"url": "memory"}, "record": {"folder": str(folder)}}
    return thalweg.Plan.of(table | more)


def test_a_plan_is_run_and_its_result_has_record_rounds_and_metrics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, "thalweg"):
        result = thalweg.run(plan(tmp_path, "Measured"))
    assert result.record.parent == tmp_path
    assert (result.record / "plan.toml").is_file()
    assert [entry["round"] for entry in result.rounds] == [1, 2]
    assert result.metrics == {"accuracy": 0.5, "loss": 2.0}
    assert result.summary["record"] == str(result.record)
    assert [record.getMessage()[:9] for record in caplog.records][-1] == "round 2/2"
    assert capfd.readouterr() == ("", ""), "what happens goes to the logger alone"


def test_a_run_can_be_resumed(tmp_path: Path) -> None:
    first = thalweg.run(plan(tmp_path, job={"rounds": 1}))
    again = thalweg.run(plan(tmp_path), resume=first.record)
    assert (again.record, [entry["round"] for entry in again.rounds]) == (first.record, [1, 2])


def test_a_graph_is_run_too(tmp_path: Path) -> None:
    result = thalweg.run(plan(tmp_path, job={"graph": "full", "rounds": 1}, transport={"url": "tcp"}))
    assert [(entry["round"], len(entry["nodes"])) for entry in result.rounds] == [(1, 2)]


def test_virtual_time_needs_the_command(tmp_path: Path) -> None:
    network = {"emulator": "packet", "rtt": "10ms", "clock": "virtual"}
    with pytest.raises(thalweg.PlanError, match="inside a guest"):
        thalweg.run(plan(tmp_path, transport={"url": "tcp"}, network=network))


def test_an_exception_of_the_app_is_a_thalweg_error_that_has_it(tmp_path: Path) -> None:
    with pytest.raises(thalweg.AppError) as caught:
        thalweg.run(plan(tmp_path, "Failing"))
    assert isinstance(caught.value.__cause__, ValueError)


def test_every_error_class_is_public() -> None:
    classes = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, errors.ThalwegError)]
    assert {one.__name__ for one in classes} <= set(thalweg.__all__)
