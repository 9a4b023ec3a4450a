"""The sentence about a comparison: by how much, within which interval, how sure, and how many more runs it needs."""

from __future__ import annotations

import pytest

from thalweg.ui.comparing import compare
from thalweg.ui.verdict import how_much, listed, verdict

FIVE = [1.0, 1.01, 1.02, 1.03, 1.04]


def times(factor: float) -> list[float]:
    return [factor * value for value in FIVE]


def test_the_sentences_of_the_documents() -> None:
    six = [*FIVE, 1.05]
    sentence_verdict = verdict(
        {"tcp": six, "mqtt": [1.005 * value for value in six], "udp": [1.12 * value for value in six]}
    )
    assert sentence_verdict.sentence == (
        "tcp and mqtt are too close to call (mqtt takes 0.98 to 1.04 times as long); udp is 12 % slower (9 to 15 %); "
        "sure: yes, 6 runs each; 20 each would tell: --repetitions 20"
    )
    assert sentence_verdict.leaders == ["tcp", "mqtt"]
    few = verdict({"unifl": [0.58, 0.62], "tcp": [4.0, 4.4]})
    assert few.sentence == (
        "unifl is fastest; tcp takes 7.0 times as long (5.3 to 9.3); sure: fairly, 2 runs each cannot prove it, "
        "4 would: --repetitions 4"
    )
    assert few.compared["tcp"].chance == pytest.approx(1 / 3)


def test_one_is_fastest() -> None:
    sentence_verdict = verdict({"udp": times(3.0), "tcp": FIVE, "grpc": times(1.5)})
    assert sentence_verdict.sentence == (
        "tcp is fastest; grpc is 50 % slower (46 to 55 %), udp takes 3.0 times as long (2.9 to 3.1); sure: yes, "
        "5 runs each"
    )
    assert sentence_verdict.repetitions is None


def test_what_failed_is_named() -> None:
    sentence_verdict = verdict({"tcp": FIVE, "udp": times(1.5)[:3], "ltp": []}, {"ltp": 5, "udp": 2, "tcp": 0})
    assert "ltp failed, 2 of 5 runs of udp failed" in sentence_verdict.sentence
    assert "sure: yes, 3 to 5 runs each" in sentence_verdict.sentence, "2 of 56 deals part them as far"
    assert sentence_verdict.table()["failed"] == {"ltp": {"failed": 5, "runs": 5}, "udp": {"failed": 2, "runs": 5}}


def test_few_runs_are_no_certainty() -> None:
    assert verdict({"tcp": [1.0], "udp": [2.0]}).sentence == (
        "tcp was fastest; udp took 2.0 times as long; sure: no, 1 run each cannot prove it, 4 would: --repetitions 4"
    ), "one run of each may be chance"
    assert verdict({"tcp": FIVE[:3], "udp": times(2.0)[:3]}).sure == "fairly"
    assert verdict({"tcp": FIVE[:4], "udp": times(2.0)[:4]}).sure == "yes"
    assert verdict({"tcp": FIVE}).sentence == "only tcp was measured; sure: no, 5 runs each"
    assert verdict({"tcp": []}, {"tcp": 2}).sentence == "no run came to its end; tcp failed; sure: no, 0 runs each"


def test_what_hardly_differs_is_not_settled_by_many_runs() -> None:
    spread = [1.0, 2.0, 1.5]
    sentence_verdict = verdict({"tcp": spread, "udp": [1.001 * value for value in spread]})
    assert sentence_verdict.sentence.endswith("sure: no, 3 runs each; even 100 each would not tell")
    same = verdict({"tcp": [1.0] * 4, "udp": [1.001] * 4})
    assert same.sentence == "tcp and udp are alike (udp takes 1.00 to 1.00 times as long); sure: yes, 4 runs each"


def test_far_from_what_was_asked() -> None:
    near = verdict({"tcp": FIVE, "udp": times(2.0)}, away=0.5)
    assert near.sure == "fairly"
    assert near.sentence.endswith("sure: fairly, 5 runs each, measured 0.5 doublings away from what was asked")
    assert verdict({"tcp": FIVE, "udp": times(2.0)}, away=3.0).sure == "no"


def test_many_are_not_all_named() -> None:
    sentence_verdict = verdict({f"t{number}": times(1 + 0.3 * number) for number in range(8)})
    assert "3 more are slower still" in sentence_verdict.sentence
    assert "t5" not in sentence_verdict.sentence


def test_nothing_takes_no_time() -> None:
    sentence_verdict = verdict({"a": [0.0] * 3, "b": [1.0] * 3})
    assert sentence_verdict.compared["b"].factor == float("inf")
    assert "b takes more than 1000 times as long" in sentence_verdict.sentence
    assert verdict({"a": [0.0] * 3, "b": [0.0] * 3}).leaders == ["a", "b"]


def test_words() -> None:
    alone = [how_much(compare([1.0], [factor])) for factor in (1.5, 12.3)]
    assert alone == ["took 1.50 times as long", "took 12 times as long"]
    assert how_much(compare([1.0] * 4, [1.5] * 4)) == "is 50 % slower (50 to 50 %)"
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
