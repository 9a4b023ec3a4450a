"""Compression of tasks' answers: what rounding leaves out of an update is in a later one."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg
from thalweg.errors import CoreError, ModelError, PlanError, RecordError

LIMIT = 60.0
SMALL = 0.05
BLOCK, BLOCKS = 256, 64


def update(values: Any) -> dict[str, Any]:
    return {"w": np.asarray(values, np.float32), "steps": np.array([3], np.int64)}


@pytest.mark.parametrize("scheme", ["int8", "int4", "int2", "topk:0.1"])
def test_what_is_left_out_is_sent_later(scheme: str) -> None:
    feedback, random = thalweg.ErrorFeedback(scheme), np.random.default_rng(1)
    given, sent = np.zeros(1000), np.zeros(1000)
    for task in range(1, 201):
        values = random.normal(0.1, 1.0, 1000)
        answer = feedback.compressed(task, update(values))
        assert answer["steps"][0] == 3
        given, sent = given + values, sent + answer["w"]
        feedback.settle(task, counts=True)
    # Without feedback, top-k would never send most of the mean, 20 for each value.
    assert abs((given - sent).mean()) < 0.1 * given.mean()


def test_an_answer_that_does_not_count_goes_back() -> None:
    feedback, values = thalweg.ErrorFeedback("int8"), np.linspace(-1, 1, 300)
    first = feedback.compressed(1, update(values))["w"].copy()
    feedback.settle(1, counts=False)
    second = feedback.compressed(2, update(np.zeros(300)))["w"]
    np.testing.assert_allclose(second, values, atol=0.02)
    np.testing.assert_allclose(second, first, atol=0.02)
    feedback.settle(2, counts=True)
    feedback.settle(2, counts=False)  # it is settled already
    assert np.abs(feedback.compressed(3, update(np.zeros(300)))["w"]).max() < 0.02


def test_a_value_that_is_not_finite_spoils_no_later_update() -> None:
    feedback, values = thalweg.ErrorFeedback("int8"), np.ones(300)
    values[7] = np.nan
    feedback.compressed(1, update(values))
    feedback.settle(1, counts=False)
    assert np.isfinite(feedback.compressed(2, update(np.ones(300)))["w"]).all()


def test_a_residual_lives_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "one.residual"
    values = np.linspace(-1, 1, 300)
    kept, plain = thalweg.ErrorFeedback("int2", file), thalweg.ErrorFeedback("int2")
    for feedback in (kept, plain):
        feedback.compressed(1, update(values))
        feedback.settle(1, counts=True)
        feedback.compressed(2, update(values))
        feedback.close()  # the second answer has no verdict
    again = thalweg.ErrorFeedback("int2", file)
    found, wanted = (one.compressed(3, update(np.zeros(300)))["w"] for one in (again, plain))
    np.testing.assert_array_equal(found, wanted)
    with pytest.raises(RecordError, match=r"another model.*Delete the file"):
        thalweg.ErrorFeedback("int2", file).compressed(1, {"w": np.zeros(5, np.float32)})
    with pytest.raises(ModelError, match="other tensors"):
        again.compressed(4, {"w": np.zeros(5, np.float32)})


class Uneven:
    """One value of each block jumps by 1 in each round, and the others creep towards SMALL.

    A block's scale follows the value that jumps, so 2 bits round each change of the others to 0.
    """

    def model(self) -> dict[str, Any]:
        return {"w": np.zeros(BLOCK * BLOCKS, np.float32)}

    def train(self, model: Any, data: Any, config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        jump = 1 if config["round"] % 2 else -1
        before = model["w"][::BLOCK].copy()
        model["w"] += 0.1 * (np.float32(SMALL) - model["w"])
        model["w"][::BLOCK] = before + jump
        return 1, {}

    def evaluate(self, model: Any, data: Any) -> dict[str, float]:
        return {"small": float(model["w"].reshape(BLOCKS, BLOCK)[:, 1:].mean())}


def test_asynchronous_updates_travel_in_few_bits_and_lose_nothing(tmp_path: Path) -> None:
    record = tmp_path / "replies.jsonl"
    with thalweg.TaskServer(compression="int2", record=record) as server:

        def take_part() -> None:
            client = thalweg.TaskClient(server.address, name="one", compression="int2")
            thalweg.fedbuff_client(client, Uneven(), data=(), residual=tmp_path / "one.residual")

        thread = threading.Thread(target=take_part, daemon=True)
        thread.start()
        assert server.wait(1, LIMIT) == 1
        versions = list(thalweg.fedbuff(server, Uneven(), 160, buffer=1, staleness=0.0, data=()))
    thread.join(LIMIT)
    assert versions[0].metrics["small"] == 0, "2 bits round all of the first change to 0"
    assert abs(versions[-1].metrics["small"] - SMALL) < 0.2 * SMALL
    transfers = [way for line in record.read_text().splitlines() for way in json.loads(line)["transfers"]]
    up = [way for way in transfers if way["direction"] == "up" and way["complete"]]
    assert sum(way["wire_bytes"] for way in up) < 0.1 * sum(way["bytes"] for way in up)
    assert (tmp_path / "one.residual").exists()


def test_factors_are_for_rounds() -> None:
    for refused in (
        lambda: thalweg.ErrorFeedback("powersgd:2"),
        lambda: thalweg.TaskServer(compression="powersgd:2"),
        lambda: thalweg.TaskClient("tcp://127.0.0.1:1", name="one", compression="powersgd:2"),
    ):
        with pytest.raises(PlanError, match="other tensors each time"):
            refused()


def test_members_have_the_servers_compression() -> None:
    with thalweg.TaskServer(compression="int8") as server:
        client = thalweg.TaskClient(server.address, name="one", compression="int4", timeout=2)
        with pytest.raises(CoreError):
            client.run(lambda _: None)
        assert server.wait(1, timeout=0) == 0


def test_ends_of_tasks_are_told_in_the_thread_that_works() -> None:
    ended: list[tuple[int, str]] = []
    with thalweg.TaskServer() as server:

        def work(task: thalweg.Given) -> int:
            if task.head == "fail":
                raise ValueError("no")
            return 1

        def take_part() -> None:
            with thalweg.TaskClient(server.address, name="one") as client:
                client.run(work, ended=lambda number, how: ended.append((number, how)))

        thread = threading.Thread(target=take_part, daemon=True)
        thread.start()
        assert server.wait(1, LIMIT) == 1
        numbers = []
        for head in ("good", "fail", "good"):
            with server.send(head, to="one") as task:
                assert len(list(task)) == 1
                numbers.append(task.number)
    thread.join(LIMIT)
    assert ended[:2] == [(numbers[0], "accepted"), (numbers[1], "refused")]
