"""Changes and traces become whole shapes, each with its time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thalweg.errors import PlanError
from thalweg.network import changes, spec
from thalweg.network.changes import Change
from thalweg.network.shape import Burst, Shape
from thalweg.sections.network import NetworkSection

MBIT = 1_000_000


def expanded(clients: int = 1, **table: Any) -> tuple[Change, ...]:
    names = [f"client-{number}" for number in range(1, clients + 1)]
    return spec.build(names, NetworkSection.model_validate(table)).changes


def test_a_change_keeps_what_it_does_not_name() -> None:
    made = expanded(
        profile="wan",
        changes=[{"at": "5s", "loss": "1%"}, {"at": 7, "rate": "10mbit"}, {"at": "9s", "burst": "1%/30%"}],
    )
    assert made == (
        Change(5, "client-1", None, Shape(rate=1000 * MBIT, delay=0.02, loss=0.01)),
        Change(7, "client-1", None, Shape(rate=10 * MBIT, delay=0.02, loss=0.01)),
        Change(9, "client-1", None, Shape(rate=10 * MBIT, delay=0.02, burst=Burst(0.01, 0.3))),
    )


def test_changes_are_in_order_of_time() -> None:
    made = expanded(rate=9, changes=[{"at": 3, "rate": 3}, {"at": 1, "rate": 1}, {"at": 3, "rate": 4}])
    assert [(change.at, change.shape.rate) for change in made] == [(1, 1), (3, 3), (3, 4)]


def test_a_drop_ends_as_the_link_was() -> None:
    drop = [{"at": "1min", "down": True}, {"at": "7min", "down": False}]
    made = expanded(profile="wifi", changes=drop, time_scale=0.25)
    assert made == (
        Change(15, "client-1", None, Shape(rate=60 * MBIT, down=True)),
        Change(105, "client-1", None, Shape(rate=60 * MBIT)),
    )


def test_a_profile_replaces_all_a_link_was() -> None:
    made = expanded(profile="wan", loss=0.1, changes=[{"at": 2, "profile": "3g", "rtt": "80ms"}])
    assert made == (Change(2, "client-1", None, Shape(rate=5 * MBIT, delay=0.04)),)


def test_only_changes_that_name_it_change_a_brokers_link() -> None:
    made = expanded(rate=9, broker={}, changes=[{"at": 1, "rate": 5}, {"at": 2, "link": "broker", "rate": 7}])
    assert made == (Change(1, "client-1", None, Shape(rate=5)), Change(2, "broker", None, Shape(rate=7)))


def test_a_direction_changes_alone() -> None:
    made = expanded(rate=9, changes=[{"at": 1, "direction": "up", "rate": 5}, {"at": 2, "loss": 0.5}])
    assert made == (
        Change(1, "client-1", "ab", Shape(rate=5)),
        Change(2, "client-1", "ab", Shape(rate=5, loss=0.5)),
        Change(2, "client-1", "ba", Shape(rate=9, loss=0.5)),
    )


def test_links_are_chosen_by_pattern() -> None:
    def links(pattern: str) -> list[str]:
        table = {"topology": "bottleneck", "rate": 9, "changes": [{"at": 1, "link": pattern, "rate": 5}]}
        return [change.link for change in expanded(2, **table)]

    assert links("*") == ["client-1", "client-2", "bottleneck"]
    assert links("client-*") == ["client-1", "client-2"]
    assert links("bottleneck") == ["bottleneck"]
    with pytest.raises(PlanError, match="Did you mean 'bottleneck'"):
        links("botleneck")


def test_a_range_is_drawn_anew_by_each_change() -> None:
    wide = ["1mbit", "900mbit"]
    made = expanded(2, rate=wide, changes=[{"at": 1, "rate": wide}, {"at": 2, "rate": wide}])
    assert len({change.shape.rate for change in made}) == 4


def test_a_trace_is_a_rate_at_each_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("seconds,rate\n# a hand-over\n0,20mbit\n1.5,3g\n2,0\n")
    made = expanded(rtt="10ms", trace={"file": str(path), "repeat": 2, "direction": "down"}, time_scale=2)
    assert [(change.at, change.direction, change.shape.rate, change.shape.down) for change in made] == [
        (0, "ba", 20 * MBIT, False),
        (3, "ba", 5 * MBIT, False),
        (4, "ba", 5 * MBIT, True),
        (5, "ba", 20 * MBIT, False),
        (8, "ba", 5 * MBIT, False),
        (9, "ba", 5 * MBIT, True),
    ]
    assert {change.shape.delay for change in made} == {0.005}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("seconds,rate\n", "is empty"),
        ("1,2,3", "trace.csv:1: '1,2,3' is not seconds,rate"),
        ("0,1mbit\nx,1mbit", "trace.csv:2:"),
        ("0,fast", "is not seconds,rate"),
        ("nan,1mbit", "is no time"),
        ("-1,1mbit", "is no time"),
        ("1,1mbit\n1,2mbit", "goes back from 1.0 to 1.0"),
    ],
)
def test_a_wrong_trace_is_explained(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(PlanError) as caught:
        expanded(trace={"file": str(path)})
    assert words in str(caught.value)


def test_a_trace_that_cannot_be_played_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="No such file"):
        expanded(trace={"file": str(tmp_path / "none.csv")})
    path = tmp_path / "trace.csv"
    path.write_text("0,1mbit\n")
    with pytest.raises(PlanError, match="one moment cannot be repeated"):
        expanded(trace={"file": str(path), "repeat": 2})
    path.write_text("0,1mbit\n1,2mbit\n")
    with pytest.raises(PlanError, match="more than 100000"):
        expanded(trace={"file": str(path), "repeat": 50_001})
    with pytest.raises(PlanError, match="more than 100000 changes"):
        expanded(3, trace={"file": str(path), "repeat": 50_000})
    path.write_bytes(b"\xff")
    with pytest.raises(PlanError, match="UTF-8"):
        changes.read_trace(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"at": 1}, "changes nothing"),
        ({"at": 1, "direction": "up", "rtt": 1}, "an rtt for one direction"),
        ({"at": 1, "rtt": 1, "delay": 1}, "[[network.changes]] 1 has both delay and rtt"),
        ({"at": 1, "jitter": 1}, "exceeds the delay of 0 us ([[network.changes]] 1)"),
        ({"at": 1, "profile": "wann"}, "Did you mean 'wan'"),
        ({"at": 1, "link": "client-9", "loss": 0}, "[[network.changes]] 1: there is no link 'client-9'"),
    ],
)
def test_an_impossible_change_is_explained(change: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError) as caught:
        expanded(changes=[change])
    assert words in str(caught.value)
