"""The summary of a bench in the terminal: by network, with the congestion control of the compared transports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.bench.cells import Fake, Quiet, bench
from thalweg.bench.answers import answers, sender, way
from thalweg.bench.axes import is_way
from thalweg.bench.results import figures
from thalweg.bench.show import MOST_ANSWERS, answer_lines
from thalweg.bench.values import CellNumbers


def row(number: int, seconds: list[float], *, failed: int = 0, bbr: str | None = None, **settings: str) -> CellNumbers:
    return replace(
        figures(number, settings, "complete", [], []),
        failed=failed,
        congestion_control=bbr,
        unasked_congestion_control=bbr,
        communication_seconds_by_run=seconds,
        fedcomm_communication_seconds_by_run=[2 * value for value in seconds],
    )


def test_transports_are_compared_in_each_network() -> None:
    rows = [
        row(1, [4.0, 4.4], transport="tcp", network="lossy", bbr="bbr"),
        row(2, [0.58, 0.62], transport="unifl", network="lossy"),
        row(3, [1.0], transport="tcp", network="none", bbr="bbr"),
        row(4, [], transport="unifl", network="none", failed=2),
    ]
    answered = answers(rows, "measured")
    assert [one.condition for one in answered] == ["network lossy", "network none"]
    assert answered[0].verdict.sentence.startswith("unifl is fastest; tcp bbr takes 7.0 times as long (5.3 to 9.3)")
    assert answered[0].verdict.repetitions == 4
    assert answered[1].verdict.failed == {"unifl": (2, 2)}
    lines = answer_lines(answered)
    assert lines[0] == f"network lossy: {answered[0].verdict.sentence}"
    assert lines[2].startswith("note: tcp bbr: BBR is this system's congestion control")
    assert answers(rows, "fedcomm")[0].verdict.compared["tcp bbr"].factor == pytest.approx(7.0, abs=0.01)


def test_a_configured_congestion_control_is_not_repeated_in_the_name() -> None:
    assert way(row(1, [], transport="tcp", congestion="cubic", bbr="cubic")) == "tcp cubic"
    assert sender(row(1, [], case="tcp bbr", bbr="bbr")) == ""
    assert sender(row(1, [], transport="tcp", bbr="cubic")) == "cubic"


def test_other_axes_say_where() -> None:
    assert [
        axis for axis in ("transport", "case", "system", "congestion", "transport.streams") if not is_way(axis)
    ] == []
    assert [axis for axis in ("network", "model", "job.clients", "compute") if is_way(axis)] == []
    rows = [replace(row(at, [1.0, 1.1]), settings={"job.clients": str(at)}) for at in (1, 2)]
    assert answers(rows, "measured") == [], "more clients are no other way to do the same"


def test_many_answers_are_in_the_file() -> None:
    rows = [
        row(2 * at + more, [1.0 + more], transport=str(more), network=str(at)) for at in range(30) for more in (0, 1)
    ]
    lines = answer_lines(answers(rows, "measured"))
    assert lines[MOST_ANSWERS:] == ["6 more answers are in bench.json"]


def test_a_bench_has_its_answers(tmp_path: Any) -> None:
    results = bench(tmp_path).run(Quiet(), execute=Fake())
    (answer,) = results.answers
    assert answer.condition == ""
    assert set(answer.verdict.leaders) == {"tcp", "memory"}, "made-up runs are all alike"
