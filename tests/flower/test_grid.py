"""The contract of Flower's Grid, such as times to live and absent nodes, for the Grid over tasks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from tests.flower.network import LIMIT, Answer, Network, echo, network
from thalweg.flower import compat
from thalweg.flower.answers import CRASHED, MESSAGE_UNAVAILABLE, NODE_UNAVAILABLE, REPLY_UNAVAILABLE
from thalweg.flower.grid import ThalwegGrid
from thalweg.flower.messages import Arrival, Sent

Open = Callable[..., Network]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens networks, and closes them when the test ends."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda answers=(echo, echo), **options: stack.enter_context(network(answers, **options))


def model(size: int = 4) -> RecordDict:
    return RecordDict({"arrays": ArrayRecord({"w": Array(np.arange(size, dtype=np.float32))})})


def messages(grid: ThalwegGrid, content: RecordDict | None = None, **options: Any) -> list[Message]:
    one = content or model()
    kind = options.pop("kind", "train")
    return [Message(one, node, kind, **options) for node in grid.get_node_ids()]


class Ways:
    """A watcher that stores how many bytes of each message were sent to the node."""

    def __init__(self) -> None:
        self.down: list[int] = []

    def sent(self, sent: Sent) -> None:
        pass

    def waited(self, sent: Sent, at: float) -> None:
        pass

    def replied(self, arrival: Arrival) -> None:
        self.down += [way["wire_bytes"] for way in arrival.transfers if way["direction"] == "down"]


def raising(message: Message, context: Context) -> Message:
    return Message(RecordDict({"x": MetricRecord({"y": 1 // 0})}), reply_to=message)


def held(event: threading.Event) -> Answer:
    """Return a function that answers only when an event is set."""

    def answer(message: Message, context: Context) -> Message:
        event.wait(LIMIT)
        return echo(message, context)

    return answer


def test_replies_come_as_a_list_in_the_order_of_the_messages(opened: Open) -> None:
    grid = opened((echo, echo, echo)).grid()
    sent = messages(grid, group_id="3")
    replies = grid.send_and_receive(list(reversed(sent)))
    assert isinstance(replies, list)
    assert [reply.content["metrics"]["partition"] for reply in replies] == [2, 1, 0]
    for message, reply in zip(reversed(sent), replies, strict=True):
        asked, answered = message.metadata, reply.metadata
        assert answered.reply_to_message_id == asked.message_id != ""
        assert (answered.src_node_id, answered.dst_node_id) == (asked.dst_node_id, compat.SERVER_NODE)
        assert (answered.group_id, answered.message_type, answered.run_id) == ("3", "train", 7)
        assert answered.message_id not in ("", asked.message_id)
        assert 0 < answered.ttl <= asked.ttl
        np.testing.assert_array_equal(reply.content["arrays"]["w"].numpy(), [0, 1, 2, 3])


def test_a_node_keeps_its_id_and_its_context(opened: Open) -> None:
    def count(message: Message, context: Context) -> Message:
        seen = context.state.setdefault("seen", MetricRecord({"count": 0}))
        seen["count"] += 1
        assert context.run_config == {"rate": 0.5}
        assert context.run_id == 7
        seen_by_node = {"count": seen["count"], "node": context.node_id, "to": message.metadata.dst_node_id}
        return Message(RecordDict({"m": MetricRecord(seen_by_node)}), reply_to=message)

    grid_and_nodes = opened((count,))
    grid = grid_and_nodes.grid()
    (node,) = grid.get_node_ids()
    assert node == grid_and_nodes.grid().get_node_ids()[0] != compat.SERVER_NODE
    for number in (1, 2, 3):
        (reply,) = grid.send_and_receive(messages(grid, kind="query"))
        assert dict(reply.content["m"]) == {"count": number, "node": node, "to": node}


def test_what_failed_changes_no_state(opened: Open) -> None:
    def fails_second(message: Message, context: Context) -> Message:
        seen = context.state.setdefault("seen", MetricRecord({"count": 0}))
        seen["count"] += 1
        if "fail" in message.content:
            raise ValueError("no")
        return Message(RecordDict({"m": MetricRecord({"count": seen["count"]})}), reply_to=message)

    grid = opened((fails_second,)).grid()
    counts = []
    for content in (model(), RecordDict({"fail": ConfigRecord()}), model()):
        (reply,) = grid.send_and_receive(messages(grid, content))
        counts.append(reply.content["m"]["count"] if reply.has_content() else reply.error.code)
    assert counts == [1, 2, 2], "2 is the code of an error, and then a count"


def test_messages_that_are_pushed_are_pulled_once(opened: Open) -> None:
    release = threading.Event()
    grid = opened((echo, held(release))).grid()
    ids = grid.push_messages(messages(grid))
    assert all(ids)
    first: list[Message] = []
    while not first:
        first = grid.pull_messages(ids)
    assert [reply.metadata.reply_to_message_id for reply in first] == [ids[0]]
    assert grid.pull_messages(ids[1:]) == [], "a reply that is not there yet is no error"
    (gone,) = grid.pull_messages(ids[:1])
    assert (gone.error.code, gone.metadata.reply_to_message_id) == (MESSAGE_UNAVAILABLE, ids[0])
    release.set()
    second: list[Message] = []
    while not second:
        second = grid.pull_messages(ids[1:])
    assert second[0].content["metrics"]["partition"] == 1


def test_an_unknown_message_is_an_error_and_an_unknown_node_is_none(opened: Open) -> None:
    grid = opened((echo,)).grid()
    (error,) = grid.pull_messages(["nothing"])
    assert error.error.code == MESSAGE_UNAVAILABLE
    (node,) = grid.get_node_ids()
    ids = grid.push_messages([Message(model(), 5, "train"), Message(model(), node, "train")])
    assert [one is None for one in ids] == [True, False]
    assert len(grid.send_and_receive([Message(model(), 5, "train"), Message(model(), node, "train")])) == 1


def test_after_the_timeout_arrived_replies_are_returned_and_others_can_be_pulled(opened: Open) -> None:
    release = threading.Event()
    grid = opened((echo, held(release))).grid()
    sent = messages(grid)
    (reply,) = grid.send_and_receive(sent, timeout=0.5)
    assert reply.content["metrics"]["partition"] == 0
    release.set()
    late: list[Message] = []
    while not late:
        late = grid.pull_messages([sent[1].metadata.message_id])
    assert late[0].content["metrics"]["partition"] == 1


@pytest.mark.parametrize("timeout", [0, -1.0])
def test_without_time_the_messages_go_out_and_nothing_is_waited_for(opened: Open, timeout: float) -> None:
    grid = opened((echo,)).grid()
    sent = messages(grid)
    assert grid.send_and_receive(sent, timeout=timeout) == []
    replies: list[Message] = []
    while not replies:
        replies = grid.pull_messages([sent[0].metadata.message_id])
    assert replies[0].has_content()


def test_nothing_to_send_is_nothing_to_wait_for(opened: Open) -> None:
    grid = opened((echo,)).grid()
    assert grid.send_and_receive([]) == []
    assert grid.push_messages([]) == []
    assert grid.pull_messages([]) == []


def test_a_message_lives_as_long_as_it_says(opened: Open) -> None:
    release = threading.Event()
    grid = opened((held(release),)).grid()
    (reply,) = grid.send_and_receive(messages(grid, ttl=0.3))
    assert reply.error.code == MESSAGE_UNAVAILABLE
    release.set()


def test_a_message_that_has_expired_is_not_worked_on(opened: Open) -> None:
    worked: list[str] = []

    def note(message: Message, context: Context) -> Message:
        worked.append(message.metadata.group_id)
        return echo(message, context)

    grid = opened((note,)).grid()
    expired, *_ = messages(grid, ttl=1.0, group_id="old")
    expired.metadata.created_at -= 5
    (error,) = grid.send_and_receive([expired])
    assert error.error.code == MESSAGE_UNAVAILABLE
    grid.send_and_receive(messages(grid, group_id="new"))
    assert worked == ["new"]


def test_a_reply_without_time_to_live_is_an_error(opened: Open) -> None:
    def brief(message: Message, context: Context) -> Message:
        reply = Message(message.content, reply_to=message)
        reply.metadata.ttl = 0.0
        return reply

    grid = opened((brief,)).grid()
    (error,) = grid.send_and_receive(messages(grid))
    assert error.error.code == REPLY_UNAVAILABLE
    assert "time to live" in (error.error.reason or "")


def test_a_reply_that_came_in_time_can_be_pulled_later(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    grid = opened().grid()
    monkeypatch.setattr("thalweg.flower.grid.time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    ids = grid.push_messages(messages(grid, ttl=3600.0))
    replies: list[Message] = []
    while not replies:
        replies = grid.pull_messages(ids[1:])
    now[0] += 1e9
    while len(replies) < 2:
        replies += grid.pull_messages(ids[:1])
    assert all(reply.has_content() for reply in replies)


@pytest.mark.parametrize("spoil", ["ttl", "reply", "error"])
def test_what_is_no_message_for_a_node_is_refused(opened: Open, spoil: str) -> None:
    grid = opened((echo,)).grid()
    (message,) = messages(grid)
    if spoil == "ttl":
        message.metadata.ttl = 0
    elif spoil == "reply":
        message = Message(model(), reply_to=compat.name(message, "x"))
    else:
        message = Message(Error(0, "x"), reply_to=message)
    with pytest.raises(ValueError, match="Invalid message"):
        grid.push_messages([message])


def test_an_app_that_raises_is_an_error_with_its_words(opened: Open) -> None:
    grid = opened((raising, echo)).grid()
    failed, fine = grid.send_and_receive(messages(grid))
    assert failed.error == Error(2, "<class 'ZeroDivisionError'>:<'integer division or modulo by zero'>")
    assert fine.has_content()


def test_a_node_that_leaves_is_an_error_at_once(opened: Open) -> None:
    release = threading.Event()
    grid_and_nodes = opened((held(release), echo))
    grid = grid_and_nodes.grid()
    sent = messages(grid)
    grid.push_messages(sent)
    grid_and_nodes.clients["client-1"].close("it has to go")
    gone: list[Message] = []
    while not gone:
        gone = grid.pull_messages([sent[0].metadata.message_id])
    assert gone[0].error.code == NODE_UNAVAILABLE
    assert gone[0].metadata.src_node_id == sent[0].metadata.dst_node_id
    release.set()


def test_a_process_that_ended_is_another_error(opened: Open) -> None:
    release = threading.Event()
    grid = opened((held(release),)).grid()
    sent = messages(grid)
    grid.push_messages(sent)
    grid.crashed("client-1", "killed by signal 9")
    gone: list[Message] = []
    while not gone:
        gone = grid.pull_messages([sent[0].metadata.message_id])
    assert gone[0].error == Error(CRASHED, "killed by signal 9")
    release.set()


def test_a_reply_over_the_budget_is_an_error(opened: Open) -> None:
    def large(message: Message, context: Context) -> Message:
        return Message(model(10_000), reply_to=message)

    grid = opened((large, echo), max_result=20_000).grid()
    failed, fine = grid.send_and_receive(messages(grid))
    assert failed.error.code == REPLY_UNAVAILABLE
    assert "20000 is the most" in (failed.error.reason or "")
    assert fine.has_content()


def test_replies_that_do_not_fit_into_memory_lie_in_files(opened: Open) -> None:
    grid = opened((echo, echo, echo), memory=1).grid()
    replies = grid.send_and_receive(messages(grid, model(100_000)))
    for reply in replies:
        np.testing.assert_array_equal(reply.content["arrays"]["w"].numpy(), np.arange(100_000, dtype=np.float32))


def test_messages_of_any_kind_and_without_arrays(opened: Open) -> None:
    grid = opened((echo,)).grid()
    for kind in ("train", "evaluate", "query", "train.other"):
        content = RecordDict({"c": ConfigRecord({"kind": kind, "raw": b"\x00" * 5000})})
        (reply,) = grid.send_and_receive(messages(grid, content, kind=kind))
        assert reply.metadata.message_type == kind
        assert reply.content["c"] == content["c"]
    (error,) = grid.send_and_receive(messages(grid, kind="train.unknown"))
    assert "No train function registered" in (error.error.reason or "")


def test_layouts_change_from_message_to_message(opened: Open) -> None:
    grid = opened((echo,)).grid()
    for size in (1, 1000, 0, 7):
        (reply,) = grid.send_and_receive(messages(grid, model(size)))
        assert reply.content["arrays"]["w"].numpy().shape == (size,)


def test_a_node_may_be_sent_the_same_content_twice_at_once(opened: Open) -> None:
    grid = opened((echo,)).grid()
    content = model()
    replies = grid.send_and_receive(messages(grid, content) + messages(grid, content))
    assert len({reply.metadata.reply_to_message_id for reply in replies}) == 2


def test_many_threads_may_use_a_grid(opened: Open) -> None:
    grid = opened((echo,) * 4).grid()

    def ask(number: int) -> bool:
        node = grid.get_node_ids()[number % 4]
        content = RecordDict({"c": ConfigRecord({"number": number}), **model(number)})
        (reply,) = grid.send_and_receive([Message(content, node, "train")], timeout=LIMIT)
        same = reply.content["c"]["number"] == number and reply.content["arrays"]["w"].numpy().size == number
        return bool(same and reply.metadata.src_node_id == node)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(64)))


def test_nodes_that_have_the_arrays_already_are_sent_none_again(opened: Open) -> None:
    ways = Ways()
    grid = opened((lambda message, _: Message(RecordDict(), reply_to=message),) * 2).grid(watcher=ways)
    arrays = model(100_000)["arrays"]
    for kind in ("evaluate", "train"):
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({"kind": kind})})
        grid.send_and_receive(messages(grid, content, kind=kind))
    assert [size > 400_000 for size in ways.down] == [True, True, False, False], ways.down
    assert max(ways.down[2:]) < 10_000, "the training has the evaluation's arrays"


def test_legacy_messages_with_the_same_bytes_are_one_set_of_tensors(opened: Open) -> None:
    ways = Ways()
    grid = opened((lambda message, _: Message(RecordDict(), reply_to=message),)).grid(watcher=ways)
    data = Array(np.ones(100_000, np.float32)).data
    for _ in range(3):
        record = ArrayRecord({"w": Array("", (), "numpy.ndarray", data)})
        grid.send_and_receive(messages(grid, RecordDict({"parameters": record})))
    assert ways.down[0] > 400_000
    assert max(ways.down[1:]) < 10_000, ways.down


def test_a_run_is_flowers_and_nothing_else(opened: Open) -> None:
    grid = opened((echo,)).grid()
    assert grid.run.run_id == 7
    with pytest.raises(TypeError, match="must be an instance of Run"):
        grid.set_run(1)
    grid.set_run(compat.new_run(9, {}))
    assert grid.run.run_id == 9
    if hasattr(Grid, "get_nodes"):  # since release 1.34 or so
        assert [info.node_id for info in grid.get_nodes()] == grid.get_node_ids()


class Strange:
    """A fake task of a server that breaks the adapter's protocol."""

    def __init__(self, head: object) -> None:
        self.head, self.number, self.over = head, 1, False
        self.tensors: dict[str, Any] = {}
        self.refused: list[str] = []

    def refuse(self, reason: str) -> None:
        self.refused.append(reason)


GOOD = {
    "id": "1", "salt": "s", "run": 1, "group": "", "age": 1.0, "ttl": 60.0, "type": "train", "config": {},
    "records": [], "seed": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    "head",
    [
        None,
        {},
        {**GOOD, "salt": 1},
        {**GOOD, "age": "now"},
        {**GOOD, "ttl": float("inf")},
        {**GOOD, "type": "run this"},
        {**GOOD, "config": []},
        {**GOOD, "config": {"a": [1]}},
        {**GOOD, "records": 0},
        {**GOOD, "run": True},
        {**GOOD, "seed": "x"},
    ],
)
def test_a_node_refuses_what_is_no_message(head: object) -> None:
    from thalweg.flower.client import Apps, Node

    def never() -> Any:
        raise AssertionError("the app was loaded")

    task = Strange(head)
    Node("a", Apps(never), {}).serve([task])
    assert len(task.refused) == 1


def test_a_message_was_created_by_the_clock_of_its_node() -> None:
    """A reply must not count as expired because the node's clock is ahead."""
    from thalweg.flower.client import received

    task: Any = Strange(GOOD)
    before = time.time()
    message, _, _ = received({**GOOD, "age": 5.0}, task, "a")
    assert before - 0.001 <= message.metadata.created_at + 5 <= time.time() + 0.001


@pytest.mark.parametrize(
    "head",
    [
        None,
        {"records": []},
        {"created": 1.0, "ttl": 1.0},
        {"created": "x", "ttl": 1.0, "records": []},
        {"created": 1.0, "ttl": -1.0, "records": []},
        {"created": 1.0, "ttl": 1.0, "records": [["a", "arrays", [["w", "along", 3]]]]},
        {"created": 1.0, "ttl": 1.0, "error": [2]},
        {"created": 1.0, "ttl": 1.0, "error": ["2", "text"]},
        {"created": 1.0, "ttl": 1.0, "error": [2, {}]},
        {"created": 1.0, "ttl": 1.0, "error": 5},
    ],
)
def test_an_answer_that_is_no_reply_is_an_error(head: object) -> None:
    from thalweg.tasks import TaskClient, TaskServer

    compat.identify(7)
    with TaskServer() as server:
        client = TaskClient(server.address, name="client-1")
        thread = threading.Thread(target=client.run, args=(lambda task: task.answer(head),), daemon=True)
        thread.start()
        server.wait(1, LIMIT)
        grid = ThalwegGrid(server, run_id=7, salt="s", config={})
        (reply,) = grid.send_and_receive(messages(grid))
        server.close()
        thread.join(LIMIT)
    assert reply.error.code == REPLY_UNAVAILABLE
    assert "no reply that can be read" in (reply.error.reason or "")


def test_a_failed_network_ends_a_wait(opened: Open) -> None:
    release = threading.Event()

    def look() -> None:
        raise ConnectionError("the network is gone")

    grid = opened((held(release),)).grid(look=look)
    with pytest.raises(ConnectionError):
        grid.send_and_receive(messages(grid))
    release.set()


def test_closing_a_grid_forgets_what_is_open(opened: Open) -> None:
    release = threading.Event()
    grid = opened((held(release),)).grid()
    ids = grid.push_messages(messages(grid))
    grid.close()
    (error,) = grid.pull_messages(ids)
    assert error.error.code == MESSAGE_UNAVAILABLE
    release.set()
