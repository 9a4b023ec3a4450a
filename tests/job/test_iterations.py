"""A node during a job: its calls to the core, and when it trains, sketches and evaluates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.record.lines import line
from thalweg import _core, wire
from thalweg.apps.received_config import ReceivedConfig
from thalweg.errors import MetricsError
from thalweg.graphs import schedule
from thalweg.job.common.parties import bytes_of
from thalweg.job.graph.iterations import Iteration, IterationWeights, iterate, iteration_weights_of
from thalweg.job.graph.lines import decode, encode
from thalweg.job.graph.peer import Peer

NAMES = ["node-1", "node-2", "node-3", "node-4"]


class Core:
    """A fake node of the core. It mixes by doubling the model, and reports that iterations were skipped."""

    def __init__(self, arena: _core.Arena, skips: Mapping[int, int] | None = None) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.sent_to: list[Sequence[str] | None] = []
        self._arena, self._skips = arena, skips or {}
        self._slow = 1

    ahead = 1

    def begin(self, round: int, weights: str, then: str | None, to: Sequence[str] | None) -> None:  # noqa: A002 - the core's own word
        self.said.append(("begin", round, json.loads(weights), then and json.loads(then)))
        self.sent_to.append(to)

    def ready(self, round: int) -> int:  # noqa: A002
        self.said.append(("ready", round))
        return self._skips.get(round, round)

    def wait(self, round: int, timeout: float | None) -> str | None:  # noqa: A002
        if self._slow:
            self._slow -= 1
            return None
        self.said.append(("wait", round))
        np.asarray(self._arena).view(np.float32)[:] *= 2
        return json.dumps({**line(round, "node-1")["report"], "next": round + 1, "skipped": round - round // 2 * 2})


class Party:
    def __init__(self, arena: _core.Arena, metrics: dict[str, Any] | None = None) -> None:
        self.told: list[ReceivedConfig] = []
        self._arena, self._metrics = arena, {"loss": 0.5} if metrics is None else metrics

    def train(self, config: ReceivedConfig) -> tuple[int, dict[str, Any]]:
        self.told.append(config)
        np.asarray(self._arena).view(np.float32)[:] += 1
        return 7, self._metrics


def run(
    rounds: int,
    weights: IterationWeights,
    skips: Mapping[int, int] | None = None,
    metrics: dict[str, Any] | None = None,
) -> tuple[Core, Party, list[Iteration]]:
    arena = _core.Arena(_core.Layout([("w", "F32", [16])]))
    core, party = Core(arena, skips), Party(arena, metrics)
    peer = Peer(arena, party, lambda: {"accuracy": float(bytes_of(arena).cast("f")[0])}, parameters=16, seed=1)
    done = iterate(
        core,
        peer,
        weights,
        rounds,
        config=lambda number: ReceivedConfig({"round": number}),
        evaluates_after=lambda number: number % 2 == 0,
    )
    return core, party, list(done)


def test_an_iteration_begins_trains_sends_waits_and_is_evaluated() -> None:
    core, party, (first, second) = run(2, IterationWeights([{"node-2": 0.25}]))
    assert core.said == [
        ("begin", 1, {"node-2": 0.25}, None),
        ("ready", 1),
        ("wait", 1),
        ("begin", 2, {"node-2": 0.25}, None),
        ("ready", 2),
        ("wait", 2),
    ]
    assert party.told == [ReceivedConfig({"round": 1}), ReceivedConfig({"round": 2})]
    # Training adds 1 and mixing doubles: 0 + 1 becomes 2, and 2 + 1 becomes 6.
    np.testing.assert_allclose(first.after, 2 * first.before)
    np.testing.assert_allclose(np.abs(second.after[:16]), 6)
    assert first.evaluation is None
    assert second.evaluation is not None
    assert second.evaluation.accuracy == 6
    assert second.evaluation.at >= second.report.mixed_at
    assert (first.samples, first.metrics) == (7, {"loss": 0.5})


def test_a_node_that_is_behind_goes_on_where_the_core_says() -> None:
    core, party, done = run(6, IterationWeights([{"node-2": 0.25}]), skips={2: 5})
    assert [one.number for one in done] == [1, 5, 6]
    assert [config.round for config in party.told] == [1, 2, 6]
    assert ("wait", 5) in core.said
    assert done[1].line(0).skipped == 1


def test_what_is_no_metric_is_refused() -> None:
    with pytest.raises(MetricsError, match="train returned the metric"):
        run(1, IterationWeights([{"node-2": 0.25}]), metrics={"loss": [1, 2]})


def test_a_graph_that_changes_says_what_comes_next() -> None:
    core, _, _ = run(3, IterationWeights([{"node-2": 0.5}, {"node-3": 0.5}]))
    begun = [said[1:] for said in core.said if said[0] == "begin"]
    assert begun == [
        (1, {"node-2": 0.5}, [{"node-3": 0.5}, {"node-2": 0.5}]),
        (2, {"node-3": 0.5}, [{"node-2": 0.5}, {"node-3": 0.5}]),
        (3, {"node-2": 0.5}, [{"node-3": 0.5}, {"node-2": 0.5}]),
    ]


def test_the_weights_of_a_graph() -> None:
    star = schedule("star", 4, 0)
    expected = IterationWeights([dict.fromkeys(NAMES[1:], 0.25)])
    assert iteration_weights_of(star, NAMES, "node-1", "metropolis") == expected
    assert iteration_weights_of(star, NAMES, "node-3", "metropolis").at(9) == {"node-1": 0.25}
    assert iteration_weights_of(star, NAMES, "node-3", "renormalise").at(9) == {"node-1": 0.25, "node-3": 0.75}
    assert not iteration_weights_of(star, NAMES, "node-3", "metropolis").changes


def test_the_papers_weights_say_the_neighbours_degrees() -> None:
    star = schedule("star", 4, 0)
    assert iteration_weights_of(star, NAMES, "node-1", "paper").at(1) == dict.fromkeys(NAMES[1:], 0.5)
    assert iteration_weights_of(star, NAMES, "node-3", "paper").at(1) == {"node-1": 0.25}


def test_on_a_one_peer_graph_a_node_hears_one_and_sends_to_another() -> None:
    weights = iteration_weights_of(schedule("one-peer", 4, 0), NAMES, "node-2", "metropolis")
    core, _, _ = run(3, weights)
    begun = [said[2:] for said in core.said if said[0] == "begin"]
    assert begun == [
        ({"node-1": 0.5}, [{"node-4": 0.5}, {"node-1": 0.5}]),
        ({"node-4": 0.5}, [{"node-1": 0.5}, {"node-4": 0.5}]),
        ({"node-1": 0.5}, [{"node-4": 0.5}, {"node-1": 0.5}]),
    ]
    assert core.sent_to == [["node-3"], ["node-4"], ["node-3"]]


def test_the_weights_of_a_graph_that_is_drawn() -> None:
    names = [f"node-{number}" for number in range(1, 11)]
    drawn = iteration_weights_of(schedule("3-regular,dynamic", 10, 1), names, "node-1", "metropolis")
    assert drawn.changes
    assert drawn.at(3) == drawn.at(3)
    assert len({tuple(drawn.at(number)) for number in range(1, 9)}) > 4
    assert set(drawn.at(3).values()) == {0.25}


def test_a_line_has_what_the_record_needs() -> None:
    _, _, (done,) = run(1, IterationWeights([{"node-2": 0.25}]))
    said = json.loads(wire.encode(encode(done.line(3.5))))
    assert (said["number"], said["clock"], said["samples"]) == (1, 3.5, 7)
    assert said["before"] != said["after"]
    assert decode(said) == done.line(3.5)
