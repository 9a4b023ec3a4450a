"""A server gets the driver of its job from the plan's algorithm."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from tests.record.conftest import outcome
from thalweg import _core, algorithms
from thalweg.job.common.parties import ServerParty
from thalweg.job.star.host import Host
from thalweg.plan import Plan
from thalweg.plan.bound import Bound
from thalweg.record import Record, RunRecord, stores
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

    def resent(self, timeout: float) -> str:
        return json.dumps({"client-1": {"down": 2, "up": 3}, "client-2": {"down": None, "up": 4}})

    def departed(self) -> str:
        return "[]"

    def clients(self) -> str:
        return json.dumps(["a"])

    def tree(self) -> None:
        return None


class Nothing:
    evaluates, personal = True, False

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
    assert Record(record.path).manifest["resent"] == {"first": 2, "down": None, "up": 7}


class Stuck:
    """Storage that accepts no bytes until the test allows it."""

    url = "stuck://run"

    def __init__(self) -> None:
        self.go_on, self.written = threading.Event(), list[str]()

    def names(self) -> list[str]:
        return []

    def write(self, name: str, content: Iterable[Any]) -> None:
        assert self.go_on.wait(60)
        list(content)
        self.written.append(name)

    def read(self, name: str) -> Any:
        raise FileNotFoundError(name)

    def remove(self, name: str) -> None:
        raise FileNotFoundError(name)


class Trained(Nothing):
    def __init__(self) -> None:
        self.arena = _core.Arena(_core.Layout([("weight", "F32", [4])]))


def test_no_round_waits_for_the_storage_of_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rounds end before the storage has accepted the first checkpoint."""
    stuck = Stuck()
    monkeypatch.setattr(stores, "store_of", lambda _url, _run: stuck)
    table = {"folder": str(tmp_path), "checkpoint_to": "stuck://"}
    plan = Plan.of({"job": {"clients": 2, "rounds": 5}, "record": table})
    record = RunRecord.create(plan, {})
    party = cast("ServerParty", Trained())
    server = cast("_core.Server", Core())
    Host(plan, server, party, record, LineProgress(), Bound("none"), first=1).serve(lambda: ["a", "b"])
    assert [one["round"] for one in Record(record.path).rounds()] == [1, 2, 3, 4, 5]
    assert stuck.written == []
    stuck.go_on.set()
    record.finish("complete")
    assert stuck.written[-1] == "round-00000005.safetensors"
    assert record.manifest["checkpoints"]["last"] == 5
    assert "is left out: storage still writes" in record.log_path.read_text()


class Waiting(Core):
    """A fake server to which only two of three clients connect."""

    def __init__(self) -> None:
        self.placed: list[int] = []

    def wait(self, _clients: int, _limit: float) -> int:
        return 2

    def place_clients(self, expected: int, _homes: str) -> None:
        self.placed.append(expected)


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    records: list[RunRecord] = []

    def made(first: int, **job: Any) -> Host:
        plan = Plan.of({"job": {"clients": 3, "grace": 1e-9, **job}, "record": {"folder": str(tmp_path)}})
        records.append(RunRecord.create(plan, {}))
        return Host(
            plan=plan,
            server=cast("_core.Server", Waiting()),
            party=cast("ServerParty", Nothing()),
            record=records[-1],
            progress=LineProgress(),
            bound=Bound("none"),
            first=first,
        )

    yield made
    for record in records:
        record.close()


class WaitsError(Exception):
    """Raised to end a wait that would never end."""


def look_often() -> Callable[[], None]:
    left = iter(range(5))

    def look() -> None:
        if next(left, None) is None:
            raise WaitsError

    return look


def test_a_server_that_goes_on_begins_with_enough_clients(waiting: Callable[..., Host]) -> None:
    host = waiting(2, enough=2)
    host.wait(look_often())
    assert "going on with 2 of 3 clients" in host.record.log_path.read_text()
    assert cast("Waiting", host.server).placed == [2], "the core waits for no third client in the first round"


@pytest.mark.parametrize(("first", "job"), [(1, {"enough": 2}), (2, {}), (2, {"enough": 3})])
def test_else_it_waits_for_all(waiting: Callable[..., Host], first: int, job: dict[str, int]) -> None:
    with pytest.raises(WaitsError):
        waiting(first, **job).wait(look_often())


def test_before_the_first_round_it_says_once_that_it_waits_for_all(waiting: Callable[..., Host]) -> None:
    host = waiting(1, enough=2)
    with pytest.raises(WaitsError):
        host.wait(look_often())
    assert host.record.log_path.read_text().count("2 of 3 clients are here; the first round begins with all of") == 1


def test_clients_that_are_known_keep_their_places(waiting: Callable[..., Host]) -> None:
    host = waiting(2, enough=2)
    assert host.previous_clients() == []
    row: Any = {"round": 1, "clients": [{"client": "c"}, {"client": "a"}, {"client": "b"}]}
    host.record.append(row)
    assert host.previous_clients() == ["a", "b", "c"]
