"""Flower's Grid over thalweg's tasks: a message is sent as a task, and its reply is the task's result.

Messages with the same content, as strategies make them, become one task for many nodes. Their arrays are copied once,
and are not sent to a node that has them already, for example from the evaluation before.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Literal, cast

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from thalweg import _core
from thalweg.flower import agreeing, compat, fold, records
from thalweg.flower.answers import Answers
from thalweg.flower.app import ConfigValue
from thalweg.flower.client import ASK, message_id, node_id
from thalweg.flower.fold import Loop, Mean, Replies, Slots
from thalweg.flower.judging import Judge
from thalweg.flower.messages import Arrival, Group, Sent, Waiting, Watcher
from thalweg.flower.tensor_cache import TensorCache
from thalweg.flower.used import UsedReplies
from thalweg.machine.waiting import WAIT_SLICE
from thalweg.tasks import Reply, Task, TaskServer


class ThalwegGrid(Grid):
    """A Grid whose messages use any transport of thalweg. All methods may be called from several threads."""

    def __init__(
        self,
        server: TaskServer,
        *,
        run_id: int,
        salt: str,
        config: Mapping[str, ConfigValue],
        seed: int = 0,
        folds: bool = True,
        holes: bool = False,
        watcher: Watcher | None = None,
        look: Callable[[], None] = lambda: None,
        waited_for: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Send messages through ``server``.

        ``salt`` determines the nodes' ids, ``config`` is the run's configuration, and ``seed`` determines the nodes'
        random numbers, unless the app seeds its generators. ``look`` is called several times a second while a caller
        waits, and may raise. ``waited_for`` is called each time that the app asks for the nodes, with the number that
        it waits for. ``folds`` allows folding on arrival; with ``holes`` folded replies may lack parts of their arrays.
        """
        self._server, self._salt, self._seed, self._config = server, salt, seed, dict(config)
        self._folds, self._holes, self._watcher, self._look = folds, holes, watcher, look
        self._waited_for = waited_for
        self._run = compat.new_run(run_id, self._config)
        self._run_id = run_id
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._open: dict[str, Waiting] = {}
        self._names: dict[int, str] = {}
        self._dead: dict[str, str] = {}
        self._tensor_cache = TensorCache()
        self._answers = Answers(run_id)
        self._loops = threading.local()
        self._used = UsedReplies()

    def set_run(self, run: Any) -> None:
        kind = compat.run_class()
        if kind is not None and not isinstance(run, kind):
            raise TypeError(f"`run` must be an instance of Run, got {type(run).__name__}")
        self._run = run

    @property
    def run(self) -> Any:
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the ids of the connected nodes, in the order of their names. Raises what ``waited_for`` raises."""
        caller = sys._getframe(1)  # noqa: SLF001 - CPython's, documented
        if not compat.only_looks(caller):
            self._waited_for(compat.nodes_waited_for(caller))
        del caller  # a frame's variable that names a frame may make a reference cycle
        with self._lock:
            return [self._node(name) for name in self._server.members]

    def crashed(self, name: str, why: str) -> None:
        """Mark that a node's process has ended: its open messages get error replies."""
        with self._lock:
            self._dead[name] = why
        self._server.forget(name, why)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages and return their ids in order; None for a message to an unknown node.

        Raises ValueError for a message without content or time to live, and for a reply.
        """
        ids, _ = self._push(list(messages), None, None, awaited=False)
        return cast("list[str]", ids)  # with None among them, as Flower's own grids do

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that have arrived, each once, and an error message for an unknown or forgotten id."""
        replies = []
        for one in message_ids:
            waiting = self._waiting(one)
            if waiting is None:
                replies.append(self._answers.unknown(one))
                continue
            self._drain(waiting.group, 0.0)
            message = self._take(one, waiting)
            if message is None and waiting.group.over and self._drop(one):
                message = self._answers.unknown(one)
            if message is not None:
                replies.append(message)
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Replies:
        """Send messages and return their replies, in the order of the messages.

        After ``timeout`` seconds it returns the replies that have arrived; the others can be pulled later. If replies
        are folded, the mean is closed then, and later replies do not count.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        # Keep no variable of the frame here: it would make a reference cycle that keeps all replies alive.
        loop = self._loop() if fold.sends_rounds(sys._getframe(1).f_code) else None  # noqa: SLF001 - CPython's, documented
        sending = list(messages)
        del messages
        if loop is not None:
            self._used.free()
        trains = all(message.metadata.message_type.partition(".")[0] == "train" for message in sending)
        if loop is not None and trains and sending and sending[0].has_content():
            loop.trains(sending[0].content)
        key = fold.weighted_key(loop.strategy) if self._folds and loop is not None and trains else None
        ids, groups = self._push(sending, key, loop, awaited=timeout is None or timeout > 0)
        self._await_all(groups, deadline)
        open_ids = [one for one in ids if one is not None]
        if loop is not None and agreeing.flower_takes(loop.strategy, trains=trains):
            self._set_apart(open_ids, loop)
        self._tell_waited(groups)
        if timeout is not None and timeout <= 0:
            return Replies()
        replies = Replies(self._take_all(open_ids), self._mean(groups))
        for group in groups:
            group.awaited = False
        if loop is not None:
            self._used.add(replies)
            if trains:
                self._tensor_cache.clear()  # the arrays of a training message are not sent again
        return replies

    def _await_all(self, groups: Sequence[Group], deadline: float | None) -> None:
        for group in groups:
            self._await(group, deadline)

    def _tell_waited(self, groups: Sequence[Group]) -> None:
        if self._watcher is not None:
            for group in groups:
                self._watcher.waited(group.sent, time.monotonic())

    def _set_apart(self, ids: Sequence[str], loop: Loop) -> None:
        """Replace replies whose form would make Flower's loop fail by errors."""
        waiting = [found for one in ids if (found := self._waiting(one)) is not None]
        for arrival in self._answers.set_apart(waiting, loop.strategy):
            if self._watcher is not None:
                self._watcher.replied(arrival)

    def _take_all(self, ids: Sequence[str]) -> list[Message]:
        """Return the replies that have arrived, in order; an error message for an id that is not known any more."""
        pairs = ((one, self._waiting(one)) for one in ids)
        replies = [
            self._answers.unknown(one) if waiting is None else self._take(one, waiting) for one, waiting in pairs
        ]
        return [reply for reply in replies if reply is not None]

    @contextmanager
    def looping(self, loop: Loop) -> Iterator[None]:
        """Mark that Flower's loop runs in this thread, until the block ends, so that messages may come from it."""
        loops: list[Loop] = self._loops.__dict__.setdefault("open", [])
        loops.append(loop)
        try:
            yield
        finally:
            loops.pop()
            self._used.forget()

    def _loop(self) -> Loop | None:
        loops: list[Loop] = self._loops.__dict__.get("open", [])
        return loops[-1] if loops else None

    def close(self) -> None:
        """Forget all open messages, and close their tasks."""
        with self._lock:
            tasks = {waiting.group.task.number: waiting.group.task for waiting in self._open.values()}
            self._open.clear()
        for task in tasks.values():
            task.close()

    def _node(self, name: str) -> int:
        """Return a node's id, and keep its name for it. The caller holds the lock."""
        node = node_id(self._salt, name)
        self._names[node] = name
        return node

    def _push(
        self, messages: Sequence[Message], key: str | None, loop: Loop | None, *, awaited: bool
    ) -> tuple[list[str | None], list[Group]]:
        """Send messages; return their ids, and the groups in which they were sent.

        With ``key`` replies may be folded if all messages make one group.
        """
        ids: list[str | None] = [None] * len(messages)
        batches: dict[Any, list[tuple[int, Message, str]]] = {}
        with self._lock:
            for name in self._server.members:
                self._node(name)
            names = dict(self._names)
        for at, message in enumerate(messages):
            metadata = message.metadata
            if not (metadata.ttl > 0 and metadata.reply_to_message_id == "" and message.has_content()):
                raise ValueError(f"Invalid message: {message}")
            if (node_name := names.get(metadata.dst_node_id)) is None:
                continue
            same: Any = (id(message.content), metadata.message_type, metadata.group_id, metadata.ttl)
            if metadata.created_at + metadata.ttl <= time.time():
                # The message has expired already. It gets an id but is not sent, and the id counts as unknown.
                label = f"{self._run_id:x}-{next(self._numbers)}"
                ids[at] = compat.name(message, message_id(label, metadata.dst_node_id)).metadata.message_id
                continue
            # A task has each node only once, so a second message with the same content to a node needs another task.
            while node_name in (other for _, _, other in batches.get(same, ())):
                same = (*same, None)
            batches.setdefault(same, []).append((at, message, node_name))
        groups = []
        for batch in batches.values():
            _, sending, to = zip(*batch, strict=True)
            group, sent_ids = self._send(sending, to, key if len(batches) == 1 else None, loop, awaited=awaited)
            groups.append(group)
            for (at, _, _), one in zip(batch, sent_ids, strict=True):
                ids[at] = one
        return ids, groups

    def _send(
        self,
        batch: Sequence[Message],
        names: Sequence[str],
        key: str | None,
        loop: Loop | None,
        *,
        awaited: bool,
    ) -> tuple[Group, list[str]]:
        """Send messages with the same content as one task; return them as a group, and their ids."""
        first, metadata = batch[0], batch[0].metadata
        number = next(self._numbers)
        label = f"{self._run_id:x}-{number}"
        age = max(0.0, time.time() - metadata.created_at)
        slots = None if key is None else Slots.of(first.content)
        packed = records.pack(first.content)
        head = {
            "id": label,
            "salt": self._salt,
            "seed": self._seed,
            "run": self._run_id,
            "type": metadata.message_type,
            "group": metadata.group_id,
            # Send the age instead of the time of creation, because a node's clock may differ from this one.
            "age": age,
            "ttl": metadata.ttl,
            "config": self._config,
            "records": packed.records,
            "fold": None if slots is None else key,
        }
        left = max(0.0, metadata.ttl - age)
        sent = Sent(number, first, names, time.monotonic(), slots is not None, loop)
        tensors = self._tensor_cache.tensors(packed)
        returns = None if slots is None else slots.layout()
        reduce: Literal["mean"] | None = None if slots is None else "mean"
        judge = None if slots is None or key is None else Judge(slots, key)
        missing = slots.missing(packed) if slots is not None and self._holes else 0.0
        task = self._server.send(
            head, tensors, to=names, deadline=left, reduce=reduce, returns=returns, missing=missing, judge=judge
        )
        if self._watcher is not None:
            self._watcher.sent(sent)  # after sending, so that the nodes work while the watcher records the last round
        group = Group(sent, label, task, sent.at + left, judge, awaited, tasks=[task], left=len(batch))
        ids = [message_id(label, message.metadata.dst_node_id) for message in batch]
        with self._lock:
            for one, message in zip(ids, batch, strict=True):
                self._open[one] = Waiting(group, compat.name(message, one).metadata)
            groups = ((one, waiting.group) for one, waiting in self._open.items())
            over = [one for one, of in groups if of.expires < sent.at and not of.awaited]
        for one in over:
            self._drop(one)
        return group, ids

    def _waiting(self, one: str) -> Waiting | None:
        with self._lock:
            return self._open.get(one)

    def _await(self, group: Group, deadline: float | None) -> None:
        """Receive replies of a group until all have arrived or the deadline has passed. Then close its mean, if any."""
        while not group.over and (deadline is None or time.monotonic() < deadline):
            left = WAIT_SLICE if deadline is None else max(0.0, deadline - time.monotonic())
            self._drain(group, min(left, WAIT_SLICE))
            self._look()
        if group.judge is not None and not group.over:
            self._end(group)

    def _drain(self, group: Group, seconds: float) -> None:
        """Receive the replies of a group that have arrived. Wait at most ``seconds`` for the first."""
        if not group.lock.acquire(timeout=seconds):
            return  # another thread receives this group's replies
        try:
            for task in list(group.tasks):
                if self._take_in(group, task, seconds):
                    group.tasks.remove(task)
                seconds = 0.0
        finally:
            group.lock.release()

    def _take_in(self, group: Group, task: Task, seconds: float) -> bool:
        """Receive the replies of a task that have arrived; return whether there will be no more."""
        while True:
            try:
                reply = task.next_reply(seconds)
            except _core.CoreError as error:
                if error.kind != "timeout":
                    raise
                return False
            if reply is None:
                return True
            self._settle(group, task, reply)
            seconds = 0.0

    def _settle(self, group: Group, task: Task, reply: Reply) -> None:
        one = message_id(group.label, node_id(self._salt, reply.member))
        waiting = self._waiting(one)
        if waiting is None or reply.state == "cancelled":
            return
        judge = group.judge if task is group.task else None
        waiting.transfers += reply.transfers
        if judge and reply.state == "failed" and (reply.reason == ASK or reply.member in judge.accepted):
            # The node has an error message, or a reply that cannot be folded, for example because a value is not
            # finite. Another task fetches the whole reply.
            left = max(0.0, group.expires - time.monotonic())
            group.tasks.append(self._server.send({"fetch": group.label}, to=reply.member, deadline=left))
            return
        head = reply.head if isinstance(reply.head, dict) else {}
        now = time.monotonic()
        message = self._answers.of(waiting, reply, self._dead.get(reply.member), judge)
        if judge and reply.done:
            group.weight += reply.weight
        usage = used if isinstance(used := head.get("usage"), dict) else {}
        arrival = Arrival(group.sent, reply.member, now, message, reply, usage, waiting.transfers)
        with self._lock:
            waiting.message, waiting.arrival = message, arrival
        if self._watcher is not None:
            self._watcher.replied(arrival)

    def _take(self, one: str, waiting: Waiting) -> Message | None:
        """Return a message's reply and forget the message; None if it has no reply yet or another thread took it."""
        with self._lock:
            message = waiting.message
        return message if message is not None and self._drop(one) else None

    def _drop(self, one: str) -> bool:
        """Forget a message; return whether it was known. With the last message of a task, close the task.

        A task with a mean stays open: ``_mean`` closes it.
        """
        with self._lock:
            waiting = self._open.pop(one, None)
            if waiting is None:
                return False
            waiting.group.left -= 1
            last = waiting.group.left == 0 and waiting.group.judge is None
        if last:
            waiting.group.task.close()
        return True

    def _end(self, group: Group) -> None:
        """Close a group's mean: cancel its tasks, so that no more replies are folded."""
        for task in list(group.tasks):
            task.cancel()
        while not group.over:
            self._drain(group, WAIT_SLICE)

    def _mean(self, groups: Sequence[Group]) -> Mean | None:
        """Return the mean of the folded replies, and close its task, which frees the sums; None if none was folded."""
        for group in groups:
            if group.judge is not None:
                mean = Mean(group.judge.slots, group.task.mean_tensors(), group.weight) if group.weight else None
                group.task.close()
                return mean
        return None
