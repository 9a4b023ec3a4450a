"""With misbehaving members, the mean, the record and the strategy still agree on the replies and their weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

from tests.flower.liars import (
    FOLDED_LIES,
    KEY,
    WHOLE_LIES,
    Draft,
    Lie,
    Member,
    arrays_of,
    dies,
    fetched,
    honest,
    silent,
)  # fmt: skip
from tests.flower.network import LIMIT
from thalweg.flower import compat, fold, grid
from thalweg.flower.grid import ThalwegGrid
from thalweg.flower.messages import Arrival, Sent
from thalweg.flower.rounds import Rounds
from thalweg.tasks import Given, TaskServer

Answer = Callable[[Given, Member], object]
SEEDS = 40


@dataclass
class Ran:
    """The results of a run: the model, the strategy's metrics, and the record's entry of each round."""

    model: Mapping[str, npt.NDArray[Any]]
    metrics: Mapping[int, Mapping[str, Any]]
    entries: Sequence[Mapping[str, Any]]
    rows: Sequence[Mapping[str, Any]]

    def states(self, at: int = 0) -> dict[str, str]:
        return {part["client"]: part["state"] for part in self.entries[at]["clients"]}

    def check(self, values: Mapping[str, float], at: int = 0) -> list[str]:
        """Assert that a round's model is the mean of the members that its entry counts; return these members."""
        parts = [part for part in self.entries[at]["clients"] if part["state"] == "whole"]
        weights = [part["metrics"][KEY] for part in parts]
        assert [part["samples"] for part in parts] == weights, "the record names the weight"
        assert self.rows[at]["replies"] == len(parts)
        assert self.rows[at]["errors"] == sum(
            part["state"] in ("rejected", "lost") for part in self.entries[at]["clients"]
        )
        if not parts:
            assert self.model == {}
            assert self.metrics == {}
            return []
        for name in ("w", "steps"):
            of = [arrays_of(values[part["client"]])[name].astype(float) for part in parts]
            np.testing.assert_allclose(self.model[name], np.average(of, axis=0, weights=weights), rtol=1e-5)
        mean = np.average([values[part["client"]] for part in parts], weights=weights)
        np.testing.assert_allclose(self.metrics[at + 1]["value"], mean, rtol=1e-9)
        return [part["client"] for part in parts]


class Watching(Rounds):
    """A watcher that stores the rounds. When all other members have answered, it gives up those that never answer."""

    def __init__(self, server: TaskServer, silent: set[str], members: int, before_end: Callable[[], None]) -> None:
        self.entries: list[Mapping[str, Any]] = []
        super().__init__(lambda entry, row: self.entries.append(entry), lambda number: None, lambda text: None)
        self._server, self._silent, self._open, self._before_end = server, silent, members, before_end

    def sent(self, sent: Sent) -> None:
        super().sent(sent)
        self._look()

    def replied(self, arrival: Arrival) -> None:
        super().replied(arrival)
        self._open -= 1
        self._look()

    def _look(self) -> None:
        if self._open == 0:
            self._before_end()
        elif self._open == len(self._silent):
            for name in self._silent:
                self._server.forget(name, "it never answers")


def ran(answers: Mapping[str, Answer], before_end: Callable[[], None] = lambda: None, **options: Any) -> Ran:
    """Run one round of FedAvg over members with these answers. At its end, members that never answer are given up."""
    compat.identify(7)
    with ExitStack() as stack:
        server = stack.enter_context(TaskServer(grace=1.0))
        members = [Member(server.address, name, answer) for name, answer in answers.items()]
        for member in members:
            stack.callback(member.thread.join, LIMIT)
        stack.callback(server.close)
        assert server.wait(len(members), LIMIT) == len(members)
        quiet = {name for name, answer in answers.items() if answer is silent}
        rounds = Watching(server, quiet, len(members), before_end)
        made = ThalwegGrid(server, run_id=7, salt="salt", config={}, watcher=rounds, **options)
        start = ArrayRecord({name: Array(one) for name, one in arrays_of(0).items()})
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
        with fold.installed():
            result = strategy.start(made, start, num_rounds=1)
        rounds.close()
    model = {name: array.numpy() for name, array in result.arrays.items()}
    return Ran(model, result.train_metrics_clientapp, rounds.entries, rounds.rows)


@pytest.mark.parametrize("name", FOLDED_LIES)
def test_nothing_of_a_folded_reply_whose_head_lies_is_in_the_mean(name: str) -> None:
    values = {"anna": 1.0, "ben": 4.0, "liar": 1e6}
    answers = {"anna": honest(1.0, 1), "ben": honest(4.0, 2), "liar": honest(1e6, 7, FOLDED_LIES[name])}
    run_result = ran(answers)
    assert run_result.check(values) == ["anna", "ben"]
    assert run_result.states()["liar"] == "rejected"
    assert run_result.rows[0]["folded"]


@pytest.mark.parametrize("name", WHOLE_LIES)
@pytest.mark.parametrize("folds", [True, False])
def test_a_whole_reply_that_lies_is_an_error_and_nobody_else_notices(name: str, folds: bool) -> None:
    values = {"anna": 1.0, "ben": 4.0, "liar": 1e6}
    lie = fetched(1e6, 7, WHOLE_LIES[name]) if folds else honest(1e6, 7, WHOLE_LIES[name])
    run_result = ran({"anna": honest(1.0, 1), "ben": honest(4.0, 2), "liar": lie}, folds=folds)
    assert run_result.check(values) == ["anna", "ben"]
    assert run_result.states()["liar"] == "rejected"


class Clock:
    """The grid's clock, which a test can advance."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def time(self) -> float:
        return time.time() + self.ahead

    def move_on(self) -> None:
        self.ahead += 1e9


@pytest.mark.parametrize("folds", [True, False])
def test_a_reply_counts_by_its_arrival(monkeypatch: pytest.MonkeyPatch, folds: bool) -> None:
    """A reply that arrives before the messages expire counts, even if the slowest member is given up long after."""
    clock = Clock()
    monkeypatch.setattr(grid, "time", clock)
    members = {"anna": honest(1.0, 1), "ben": honest(4.0, 2), "slow": silent}
    run_result = ran(members, before_end=clock.move_on, folds=folds)
    assert run_result.check({"anna": 1.0, "ben": 4.0}) == ["anna", "ben"]
    assert run_result.states() == {"anna": "whole", "ben": "whole", "slow": "lost"}


def _set_tensor(name: str, values: npt.NDArray[Any]) -> Lie:
    return lambda draft: setattr(draft, "body", {**draft.body, name: values})


def _without_a_metric(draft: Draft) -> None:
    draft.head["records"][1][2].pop()


ODD: Mapping[str, Lie] = {
    "another name": lambda draft: draft.head["records"][0][2][0].__setitem__(0, "v"),
    "one array less": lambda draft: draft.head["records"][0][2].pop(),
    "another shape": _set_tensor("0", np.ones((4, 4), np.float32)),
    "no weight": lambda draft: draft.head["records"][1][2].pop(0),
    "a negative weight": lambda draft: draft.head["records"][1][2].__setitem__(0, [KEY, -3]),
    "no arrays": lambda draft: draft.head["records"].pop(0),
    "no metrics": lambda draft: draft.head["records"].pop(),
    "two records of metrics": lambda draft: draft.head["records"].append(["more", "metrics", [["a", 1]]]),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("folds", [True, False])
def test_a_reply_of_another_form_is_an_error_and_ends_no_run(name: str, folds: bool) -> None:
    odd = fetched(1e6, 7, ODD[name]) if folds else honest(1e6, 7, ODD[name])
    run_result = ran({"odd": odd, "anna": honest(1.0, 1), "ben": honest(4.0, 2)}, folds=folds)
    assert run_result.check({"anna": 1.0, "ben": 4.0}) == ["anna", "ben"]
    assert run_result.states()["odd"] == "rejected"


def test_metrics_of_another_form_leave_the_mean_of_arrays_as_it_is() -> None:
    run_result = ran({"odd": honest(7.0, 3, _without_a_metric), "anna": honest(1.0, 1), "ben": honest(4.0, 2)})
    np.testing.assert_allclose(run_result.model["w"], np.full((3, 4), (7 * 3 + 1 + 4 * 2) / 6), rtol=1e-6)
    assert run_result.metrics[1]["value"] == 3, "of those that have it"
    assert set(run_result.states().values()) == {"whole"}


def population(random: Random) -> dict[str, tuple[float, Answer]]:
    """Return for each member its value, which it sends if it is honest, and how it answers."""
    members: dict[str, tuple[float, Answer]] = {}
    for number in range(random.randint(1, 6)):
        value, weight = float(random.randint(1, 1000)), random.choice([1, 2, 7, 1000])
        answer = random.choice([
            honest(value, weight),
            honest(value, weight),
            fetched(value, weight),
            honest(value, weight, random.choice(list(FOLDED_LIES.values()))),
            fetched(value, weight, random.choice(list(WHOLE_LIES.values()))),
            silent,
            dies,
        ])  # fmt: skip
        members[f"member-{number}"] = (value, answer)
    return members


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_mean_is_that_of_the_replies_that_the_record_counts(seed: int) -> None:
    members = population(Random(seed))
    run_result = ran({name: answer for name, (_, answer) in members.items()})
    run_result.check({name: value for name, (value, _) in members.items()})


def test_the_populations_have_means_and_rounds_without_one() -> None:
    """So the property test covers both kinds of rounds."""
    kinds = [{answer for _, answer in population(Random(seed)).values()} for seed in range(SEEDS)]
    assert any(silent in kind and len(kind) > 1 for kind in kinds)
    assert any(kind <= {silent, dies} for kind in kinds)
