"""A server takes what drives its job from the plan's algorithm."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from tests.record.conftest import outcome
from thalweg import _core, algorithms
from thalweg.job.host import Host
from thalweg.job.parties import ServerParty
from thalweg.plan import Plan
from thalweg.plan.bound import Bound
from thalweg.record import Record, RunRecord
from thalweg.ui.progress import LineProgress

T = TypeVar("T")


class Core:
    def round(self, number: int, _config: str, _observer: object) -> str:
        said = outcome(number)
        for part in said["participants"]:
            part["metrics"] = {"metrics": {}, "usage": {}}
        return json.dumps(said)

    def notes(self) -> list[str]:
        return []

    def departed(self) -> str:
        return "[]"

    def tree(self) -> None:
        return None


class Nothing:
    def evaluate(self) -> dict[str, Any]:
        return {}


def last_alone(step: Callable[[int], T], numbers: Iterable[int]) -> Iterator[T]:
    yield step(max(numbers))


@pytest.mark.parametrize(("name", "rounds"), [("fedavg", [2, 3, 4]), ("last", [4])])
def test_rounds_are_those_of_the_plans_algorithm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, rounds: list[int]
) -> None:
    last = replace(algorithms.find("fedavg"), name="last", rounds=last_alone)
    monkeypatch.setitem(algorithms.ALGORITHMS, "last", last)
    plan = Plan.of(
        {
            "job": {"clients": 2, "rounds": 4},
            "model": {"name": "payload:4KB"},
            "algorithm": {"name": name},
            "record": {"folder": str(tmp_path)},
        }
    )
    record = RunRecord.create(plan, {})
    host = Host(
        plan=plan,
        server=cast("_core.Server", Core()),
        party=cast("ServerParty", Nothing()),
        record=record,
        progress=LineProgress(),
        bound=Bound("none"),
        first=2,
    )
    host.serve(lambda: ["a", "b"])
    record.close()
    assert [one["round"] for one in Record(record.path).rounds()] == rounds
