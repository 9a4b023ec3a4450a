"""A client during a job, against a fake core that follows a script."""

from __future__ import annotations

import json
import threading
from typing import Any, Final, cast

import pytest

from thalweg import _core
from thalweg.apps.received_config import ReceivedConfig
from thalweg.errors import MetricsError
from thalweg.job.common.parties import ClientParty, Metrics
from thalweg.job.star.participant import Submission, take_part

# Seconds after which a hanging test fails.
LIMIT: Final = 60.0


class Script:
    """A fake client of the core: two rounds, then the end."""

    def __init__(self, answers: list[str | _core.CoreError]) -> None:
        self.answers = answers
        self.tasks = [(number, json.dumps({"round": number})) for number in range(1, len(answers) + 1)]
        self.sent: list[tuple[int, int, dict[str, Any]]] = []
        self.arena = "the arena"
        self.congestion = "cubic"
        self.joined = False

    def join(self) -> None:
        self.joined = True

    def next(self) -> tuple[int, str] | None:
        return self.tasks.pop(0) if self.tasks else None

    def submit(self, number: int, samples: int, metrics: str) -> str:
        self.sent.append((number, samples, json.loads(metrics)))
        answer = self.answers[number - 1]
        if isinstance(answer, _core.CoreError):
            raise answer
        return answer


class Party:
    def train(self, config: ReceivedConfig) -> tuple[int, Metrics]:
        return 10 * config.round, {"loss": 0.5}

    def evaluation(self, config: ReceivedConfig) -> Metrics:
        return {"accuracy": 0.25, "other": "words"} if config.round == 2 else {}

    def finish(self, samples: float, metrics: Metrics) -> tuple[float, Metrics]:
        return samples, metrics


def refusal(kind: str) -> _core.CoreError:
    error = _core.CoreError("the server refused the update: it has NaN")
    error.kind = kind
    return error


def play(answers: list[str | _core.CoreError], notes: list[str]) -> tuple[Script, list[Submission]]:
    script = Script(answers)
    made: list[object] = []

    def make(config: ReceivedConfig, arena: object) -> ClientParty:
        made.append((config.round, arena))
        return Party()

    rounds = take_part(cast("_core.Client", script), make, notes.append)
    assert script.joined
    assert made == [(1, "the arena")], "the party is made once, from the first round's config"
    return script, rounds


def test_every_round_is_trained_and_sent_with_what_it_took() -> None:
    script, rounds = play(["accepted", "late"], [])
    assert rounds == [
        Submission(1, 10, "accepted"),
        Submission(2, 20, "late"),
    ]
    _, _, sent = script.sent[0]
    assert sent["metrics"] == {"loss": 0.5}
    usage = sent["usage"]
    assert usage["train_seconds"] >= 0
    assert usage["congestion_control"] == "cubic"
    assert usage["peak_rss_bytes"] > 1 << 20
    assert usage["cpu_seconds"] > 0
    assert [sent.get("evaluation") for _, _, sent in script.sent] == [None, {"accuracy": 0.25}], "what was asked for"


def test_a_refused_update_is_told_and_does_not_end_the_job() -> None:
    notes: list[str] = []
    _, rounds = play([refusal("rejected"), "accepted"], notes)
    assert [one.status for one in rounds] == ["rejected", "accepted"]
    assert any("NaN" in note for note in notes)


def test_what_is_no_metric_ends_it_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Party, "train", lambda _, config: (1, {"loss": [1, 2]}))
    with pytest.raises(MetricsError, match="it is a list"):
        play(["accepted"], [])


def test_any_other_error_ends_it() -> None:
    with pytest.raises(_core.CoreError, match="refused"):
        play([refusal("closed")], [])


def test_a_client_ends_with_a_job_that_ended_while_it_trained() -> None:
    layout = _core.Layout([("w", "F32", [4])])
    server = _core.Server(_core.Arena(layout), "tcp://127.0.0.1:0", json.dumps({"expected": 1, "enough": 1}))
    training, over = threading.Event(), threading.Event()
    rounds: list[Submission] = []

    class Slow(Party):
        def train(self, config: ReceivedConfig) -> tuple[int, Metrics]:
            training.set()
            assert over.wait(LIMIT)
            return 1, {}

        def evaluation(self, config: ReceivedConfig) -> Metrics:
            return {}

    def take() -> None:
        client = _core.Client(server.address, "a", "{}", _core.Arena(layout))
        rounds.extend(take_part(client, lambda *_: Slow(), lambda _: None))
        client.close("done")

    def observe(_state: str) -> None:
        if training.is_set():
            raise InterruptedError

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    assert server.wait(1, LIMIT) == 1
    with pytest.raises(InterruptedError):
        server.round(1, "{}", observe)
    server.close("the job is over")
    over.set()
    thread.join(LIMIT)
    assert not thread.is_alive(), "it waits for a round that never comes"
    assert [one.status for one in rounds] == ["done"]
