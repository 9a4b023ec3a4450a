"""One sentence on what was measured, and how sure it is."""

from __future__ import annotations

import pytest

from thalweg.ui.verdict import chance, how_much, listed, verdict

FIVE = [1.0, 1.01, 1.02, 1.03, 1.04]


def times(factor: float) -> list[float]:
    return [factor * value for value in FIVE]


def test_the_sentence_of_the_documents() -> None:
    found = verdict({"tcp": FIVE, "mqtt": times(1.005), "udp": times(1.09)})
    assert found.sentence == "tcp and mqtt are too close to call; udp is 9 % slower; sure: yes, 5 runs each"
    assert found.table()["leaders"] == ["tcp", "mqtt"]
    assert found.table()["slower"][0]["chance"] == pytest.approx(1 / 252)


def test_one_is_fastest() -> None:
    found = verdict({"udp": times(3.0), "tcp": FIVE, "grpc": times(1.5)})
    assert found.sentence == "tcp is fastest; grpc is 50 % slower, udp takes 3.0 times as long; sure: yes, 5 runs each"


def test_what_failed_is_named() -> None:
    found = verdict({"tcp": FIVE, "udp": times(1.5)[:3], "ltp": []}, {"ltp": 5, "udp": 2, "tcp": 0})
    assert "ltp failed, 2 of 5 runs of udp failed" in found.sentence
    assert found.sentence.endswith("sure: yes, 3 to 5 runs each")
    assert found.table()["failed"] == {"ltp": {"failed": 5, "runs": 5}, "udp": {"failed": 2, "runs": 5}}


def test_few_runs_are_no_certainty() -> None:
    assert verdict({"tcp": [1.0], "udp": [2.0]}).sentence == (
        "tcp and udp are too close to call; sure: no, 1 run each"
    ), "one run of each may be chance"
    assert verdict({"tcp": FIVE[:2], "udp": times(2.0)[:2]}).sure == "fairly"
    assert verdict({"tcp": FIVE[:3], "udp": times(2.0)[:3]}).sentence.startswith("tcp is fastest; udp takes 2.0 times")
    assert verdict({"tcp": FIVE}).sentence == "only tcp was measured; sure: no, 5 runs each"
    assert verdict({"tcp": []}, {"tcp": 2}).sentence == "no run came to its end; tcp failed; sure: no, 0 runs each"


def test_far_from_what_was_asked() -> None:
    near = verdict({"tcp": FIVE, "udp": times(2.0)}, away=0.5)
    assert near.sure == "fairly"
    assert near.sentence.endswith(", measured 0.5 doublings away from what was asked")
    assert verdict({"tcp": FIVE, "udp": times(2.0)}, away=3.0).sure == "no"


def test_many_are_not_all_named() -> None:
    found = verdict({f"t{number}": times(1 + 0.1 * number) for number in range(8)})
    assert "t4 is 40 % slower, 3 more are slower still" in found.sentence


def test_nothing_takes_no_time() -> None:
    assert verdict({"a": [0.0] * 3, "b": [1.0] * 3}).slower[0].factor == float("inf")
    assert verdict({"a": [0.0] * 3, "b": [0.0] * 3}).leaders == ["a", "b"]


def test_words() -> None:
    assert [how_much(factor) for factor in (1.004, 1.5, 2.0, 12.3)] == [
        "is 0 % slower", "is 50 % slower", "takes 2.0 times as long", "takes 12 times as long",
    ]  # fmt: skip
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"


def test_the_chance_of_a_difference() -> None:
    assert chance([1.0, 2.0], [3.0, 4.0]) == pytest.approx(1 / 6)
    assert chance([3.0, 4.0], [1.0, 2.0]) == 1
    assert chance([1.0], [1.0]) == 1
    many = chance([0.001 * number for number in range(12)], [1.0 + 0.001 * number for number in range(12)])
    assert many < 0.001, "drawn, for there are too many ways"
