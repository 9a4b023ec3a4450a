"""Rounds of the record, derived from messages and replies."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from tests.outcomes import transfer_table
from thalweg.flower import compat
from thalweg.flower.messages import Arrival, Sent
from thalweg.flower.rounds import Rounds, under_way
from thalweg.tasks import Reply

compat.identify(1)


class Story:
    """Reports messages and replies to ``Rounds``, at times that the test sets."""

    def __init__(self) -> None:
        self.kept: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.begun: list[int] = []
        self.told: list[str] = []
        self.rounds = Rounds(lambda *both: self.kept.append(both), self.begun.append, self.told.append)
        self.now = 0.0

    def send(self, kind: str, *names: str, group: str = "", number: int | None = None, earlier: float = 0.0) -> Sent:
        config = ConfigRecord({} if number is None else {"server-round": number})
        message = Message(RecordDict({"config": config}), 2, kind, group_id=group)
        self.now += 1
        sent = Sent(0, message, names, self.now - earlier, False, None)
        self.rounds.sent(sent)
        return sent

    def reply(self, sent: Sent, name: str, metrics: dict[str, float] | Error, **more: Any) -> None:
        self.now += 1
        asked = compat.name(sent.message, "id")
        content: Any = metrics if isinstance(metrics, Error) else RecordDict({"m": MetricRecord(dict(metrics))})
        message = Message(content, reply_to=asked)
        reply = Reply(name, "done", None, {}, {}, 1.0, more.get("coverage", 1.0), [])
        self.rounds.replied(
            Arrival(sent, name, self.now, message, reply, more.get("usage", {}), more.get("transfers", ()))
        )


def test_a_round_is_training_and_what_follows_it() -> None:
    story = Story()
    for number in (1, 2):
        train = story.send("train", "a", "b", number=number)
        story.reply(train, "a", {"num-examples": 1, "loss": 1.0})
        story.reply(train, "b", {"num-examples": 3, "loss": 2.0})
        evaluate = story.send("evaluate", "a", number=number)
        story.reply(evaluate, "a", {"num-examples": 1, "eval_acc": 0.5})
    story.rounds.close()
    assert story.begun == [1, 2]
    (entry, row), _ = story.kept
    assert (row["replies"], row["errors"], row["seconds"]) == (3, 0, 2.0)
    assert (entry["accuracy"], entry["loss"], entry["evaluation_seconds"]) == (0.5, None, 1.0)
    assert row["metrics"] == {"train": {"loss": 1.75}, "evaluate": {"eval_acc": 0.5}}, "means by samples"
    assert [part["samples"] for part in entry["clients"]] == [1, 3]


def test_messages_that_threads_send_at_once_are_of_one_round_in_any_order() -> None:
    story = Story()
    later = story.send("train", "a")
    sooner = story.send("train", "b", earlier=1.5)
    story.reply(sooner, "b", {"num-examples": 1})
    story.reply(later, "a", {"num-examples": 1})
    story.rounds.close()
    ((_, row),) = story.kept
    assert row["replies"] == 2


def test_a_partial_reply_counts_and_the_record_has_its_coverage() -> None:
    story = Story()
    train = story.send("train", "a", "b")
    story.reply(train, "a", {"num-examples": 1, "loss": 1.0}, coverage=0.75)
    story.reply(train, "b", {"num-examples": 1, "loss": 2.0})
    story.rounds.close()
    ((entry, row),) = story.kept
    assert (row["replies"], row["errors"], row["metrics"]) == (2, 0, {"train": {"loss": 1.5}})
    parts = [(part["state"], part["coverage"], part["reason"]) for part in entry["clients"]]
    assert parts == [("partial", 0.75, "25.00% of its arrays did not come"), ("whole", 1.0, None)]
    assert entry["complete"] is False
    assert not story.told, "that is no error"


@pytest.mark.parametrize(
    ("first", "second"),
    [({"number": 4}, {"number": 5}), ({"group": "4"}, {"group": "5"}), ({}, {}), ({"group": "0"}, {"group": "x"})],
)
def test_rounds_have_numbers_however_an_app_says_them(first: dict[str, Any], second: dict[str, Any]) -> None:
    story = Story()
    for said in (first, second):
        story.reply(story.send("train", "a", **said), "a", {"loss": 1.0})
    story.rounds.close()
    numbers = [row["round"] for _, row in story.kept]
    assert numbers == ([4, 5] if "4" in first.values() or 4 in first.values() else [1, 2])


def test_errors_are_told_and_have_states() -> None:
    story = Story()
    train = story.send("train", "a", "b", "c", "d", number=1)
    story.reply(train, "a", Error(2, "it raised"))
    story.reply(train, "b", Error(8, "killed"))
    story.reply(train, "c", {"loss": float("nan")})
    story.rounds.waited(train, story.now + 5)
    story.rounds.close()
    ((entry, row),) = story.kept
    assert {part["client"]: part["state"] for part in entry["clients"]} == {
        "a": "rejected", "b": "lost", "c": "whole", "d": "late",
    }  # fmt: skip
    assert (row["replies"], row["errors"], row["seconds"], entry["complete"]) == (1, 2, 8.0, False)
    assert story.told == ["a: train: it raised", "b: train: killed"]


def test_what_comes_after_its_round_counts_no_more() -> None:
    story = Story()
    old = story.send("train", "a", "b", number=1)
    story.reply(old, "a", {"loss": 1.0})
    story.send("train", "a", number=2)
    story.reply(old, "b", {"loss": 9.0})
    story.rounds.close()
    assert [row["replies"] for _, row in story.kept] == [1, 0]


def test_a_nodes_reported_usage_is_checked() -> None:
    story = Story()
    train = story.send("train", "a", number=1)
    usage = {"train_seconds": -1, "cpu_seconds": "much", "peak_rss_bytes": 5, "more": 1}
    story.reply(train, "a", {f"m{at}": 1.0 for at in range(500)}, usage=usage)
    assert json.loads(story.rounds.state()) == {"clients": {"a": {"phase": "whole"}}}
    story.rounds.close()
    ((entry, _),) = story.kept
    (part,) = entry["clients"]
    assert part["usage"] == {"peak_rss_bytes": 5}
    assert len(part["metrics"]) == 64


def test_communication_is_the_time_in_which_anything_is_under_way() -> None:
    def way(start: float | None, end: float) -> Any:
        return transfer_table(send_start=start, receive_start=start, receive_end=end)

    assert under_way([way(0, 2), way(1, 3), way(5, 6), way(None, 9)]) == 4.0
    assert under_way([]) == 0.0
