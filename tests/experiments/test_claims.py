"""Whether a measurement shows what a paper says."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.claims import judge
from experiments.measured import Cell

SECONDS = {
    ("tcp", "3g"): 40.0,
    ("tcp", "wifi"): 10.0,
    ("udp", "3g"): 20.0,
    ("udp", "wifi"): 20.0,
}


def cells(**changed: float | None) -> list[Cell]:
    found = []
    for (case, network), seconds in SECONDS.items():
        value = changed.get(f"{case}_{network}", seconds)
        found.append(Cell({"case": case, "network": network}, {"seconds": value, "accuracy": []}))
    return found


def claim(kind: str, **keys: Any) -> dict[str, Any]:
    return {"id": "F-0", "says": "", "kind": kind, **keys}


TCP, UDP = {"case": "tcp"}, {"case": "udp"}
ALONG = {"network": ["3g", "wifi"]}


@pytest.mark.parametrize(
    ("asked", "seen", "words"),
    [
        (claim("ratio", of=TCP, to=UDP, value=1.25), True, "1.25"),
        (claim("ratio", of=TCP, to=UDP, value=1.0), True, "1.25"),
        (claim("ratio", of=TCP, to=UDP, value=2.0), False, "1.25"),
        (claim("ratio", of=TCP, to=UDP, value=0.9), False, "1.25"),
        (claim("more", of=TCP, to=UDP), True, "1.25"),
        (claim("more", of=TCP, to=UDP, along=ALONG), False, "2.00, 0.50"),
        (claim("more", of={**TCP, "network": "3g"}, to={**UDP, "network": "3g"}), True, "2.00"),
        (claim("falls", of=TCP, along=ALONG), True, "40, 10 s"),
        (claim("falls", of=UDP, along=ALONG), False, "20, 20 s"),
        (claim("rises", of=TCP, along={"network": ["wifi", "3g"]}), True, "10, 40 s"),
        (claim("rises", of=TCP, along=ALONG), False, "40, 10 s"),
        (claim("level", of=UDP, along=ALONG, factor=1.25), True, "20, 20 s"),
        (claim("level", of=TCP, along=ALONG, factor=1.25), False, "40, 10 s"),
    ],
)
def test_verdicts(asked: dict[str, Any], seen: bool, words: str) -> None:
    found = judge(asked, cells(), [])
    assert (found.seen, found.words) == (seen, words)


def test_what_was_added_is_against_another_figure() -> None:
    base = cells(tcp_3g=30.0)
    assert judge(claim("added", of=TCP, base="fig03", value=9.0), cells(), base).seen is True
    assert judge(claim("added", of=TCP, base="fig03", value=-9.0), cells(), base).seen is False
    found = judge(claim("added", of=TCP, base="fig03", value=9.0), cells(), base)
    assert found.words == "+10.0 s"


@pytest.mark.parametrize(
    ("asked", "measured"),
    [
        (claim("more", of=TCP, to={"case": "amqp"}), cells()),
        (claim("more", of=TCP, to=UDP), cells(udp_3g=None)),
        (claim("added", of=TCP, base="fig03", value=1.0), cells()),
        (claim("close", of={**TCP, "network": "3g"}, to={**UDP, "network": "3g"}, value=0.01), cells()),
    ],
)
def test_what_is_missing_is_neither_seen_nor_unseen(asked: dict[str, Any], measured: list[Cell]) -> None:
    found = judge(asked, measured, [])
    assert found.seen is None
    assert found.words.startswith("without ")


def test_accuracies_are_compared_at_the_end() -> None:
    def at(case: str, series: list[float]) -> Cell:
        return Cell({"case": case}, {"seconds": 1.0, "accuracy": series})

    asked = claim("close", of=TCP, to=UDP, value=0.005)
    assert judge(asked, [at("tcp", [0.1, 0.801]), at("udp", [0.5, 0.803])], []).seen is True
    found = judge(asked, [at("tcp", [0.1, 0.80]), at("udp", [0.5, 0.81])], [])
    assert (found.seen, found.words) == (False, "1.00 points")
    worse = judge(claim("worse", of=TCP, to=UDP), [at("tcp", [0.80]), at("udp", [0.81])], [])
    assert (worse.seen, worse.words) == (True, "1.00 points less")
    assert judge(claim("worse", of=UDP, to=TCP), [at("tcp", [0.80]), at("udp", [0.81])], []).seen is False


def rates(**changed: Any) -> list[Cell]:
    """Return cells of a kernel's receiver and of one that masks, at no loss and at 1 %."""
    found = []
    for case, loss, rate in (("tcp", "0%", 90e6), ("tcp", "1%", 3e6), ("masked", "0%", 90e6), ("masked", "1%", 89e6)):
        numbers = {"seconds": 1.0, "goodput": rate, "lost": 0.125, "jain": 0.95, **changed}
        found.append(Cell({"case": case, "loss": loss}, numbers))
    return found


@pytest.mark.parametrize(
    ("asked", "seen", "words"),
    [
        (
            claim("reaches", of={"case": "masked", "loss": "1%"}, to={"case": "tcp", "loss": "1%"}, value=20),
            True,
            "29.67",
        ),
        (
            claim("reaches", of={"case": "masked", "loss": "1%"}, to={"case": "tcp", "loss": "1%"}, value=40),
            False,
            "29.67",
        ),
        (claim("level", of={"case": "masked"}, along={"loss": ["0%", "1%"]}, factor=1.25), True, "90, 89 Mbit/s"),
        (claim("level", of={"case": "tcp"}, along={"loss": ["0%", "1%"]}, factor=1.25), False, "90, 3 Mbit/s"),
    ],
)
def test_verdicts_on_goodput(asked: dict[str, Any], seen: bool, words: str) -> None:
    found = judge({**asked, "number": "goodput"}, rates(), [])
    assert (found.seen, found.words) == (seen, words)


def test_each_of_them_is_above_and_alike() -> None:
    above = claim("above", number="lost", of={"case": "tcp"}, value=10)
    assert judge(above, rates(), []).words == "12.5, 12.5 %"
    assert judge(above, rates(), []).seen is True
    assert judge(above, rates(lost=0.1), []).seen is False
    assert judge(above, rates(lost=None), []).seen is None
    assert judge(claim("even", of={"case": "tcp"}), rates(), []).seen is True
    assert judge(claim("even", of={"case": "tcp"}), rates(jain=0.89), []).seen is False
