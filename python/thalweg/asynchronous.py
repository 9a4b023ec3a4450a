"""Rounds without waiting for anybody: ``fedbuff`` at the server, ``fedbuff_client`` at each member, over tasks.

Each member always has one task: the newest model when it was sent. Its answer is what the training has changed. The
server takes a step when its buffer is full, or after a deadline, and members go on with the model that there is when
they have answered. So a slow member holds up nobody, and its update counts less the older the model is with which it
began.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from thalweg import _core, bounded_json
from thalweg.algorithms.fedavgm import SGD
from thalweg.algorithms.fedbuff import Buffer
from thalweg.algorithms.server_step import ServerStep, Values
from thalweg.algorithms.torch_rule import MakeOptimizer, TorchRule
from thalweg.apps import own_tensors
from thalweg.apps.app import App
from thalweg.apps.metrics import numbers, returned
from thalweg.apps.received_config import ReceivedConfig
from thalweg.apps.values import config_of
from thalweg.errors import PlanError, RecordError, RoundError
from thalweg.feedback import ErrorFeedback
from thalweg.job.common.parties import AppClient, bytes_of
from thalweg.machine.waiting import WAIT_SLICE
from thalweg.record.versions import Settings, VersionRecord
from thalweg.tasks import Given, Reply, Task, TaskClient, TaskServer
from thalweg.tensors.arena import Arena
from thalweg.tensors.binding import Binding, bind
from thalweg.tensors.named import Tensors

# Returns the metrics of the model as it is now.
Evaluate: TypeAlias = Callable[[], Mapping[str, int | float]]

_log = logging.getLogger("thalweg")
# Answers that wait for the server's step. Members whose answers do not fit wait before they get the next model.
WAITING: Final = 8
#: The key of a task's head with the version of its model.
VERSION: Final = "fedbuff_version"


@dataclass(frozen=True)
class Update:
    """A member's update in a step: how many versions the model had moved on meanwhile, its weight and its metrics."""

    member: str
    staleness: int
    weight: float
    samples: float
    metrics: Mapping[str, object]


@dataclass(frozen=True)
class Version:
    """A new version of the model. ``seconds`` are since the first task was sent.

    ``refused`` has members whose answer since the last version does not count, each with the reason. ``metrics`` are of
    the evaluation, if there is test data.
    """

    number: int
    seconds: float
    updates: Sequence[Update]
    refused: Mapping[str, str]
    metrics: Mapping[str, int | float]


def fedbuff(
    server: TaskServer,
    app: App,
    versions: int,
    *,
    buffer: int,
    deadline: float | None = None,
    staleness: float = 0.5,
    most_stale: int | None = None,
    learning_rate: float = 1.0,
    optimizer: MakeOptimizer | None = None,
    data: object = None,
    config: Mapping[str, object] | None = None,
    record: Path | str | None = None,
    resume: Path | str | None = None,
) -> Iterator[Version]:
    """Train ``app``'s model up to version ``versions`` with all members that are connected; yield each new version.

    A step is taken when ``buffer`` updates have arrived, or after ``deadline`` seconds with those that have, at least
    one. An update has the weight 1 / (1 + s) ** ``staleness``, where s is the number of versions since the model with
    which it began. One with more than ``most_stale`` is dropped. The model moves by ``learning_rate`` times the
    weighted sum over the number of updates, or as ``optimizer`` says, which is as in ``thalweg.rounds``. Members may
    come and go at any time. With ``data`` the app evaluates each version. ``config`` reaches every ``train``, beside
    ``round``.

    ``record`` is a folder that gets a line for each version, and the newest version's model with the optimizer's state.
    ``resume`` is such a folder to go on from, with the same settings; ``deadline`` and ``config`` may change. Updates
    on their way when the server ended do not count: members that are still there get the newest version instead.

    The server holds its model, one sum in float64, and a copy of each version that some member still trains. Raises
    PlanError for numbers or a ``config`` that cannot be, ModelError, RecordError, CoreError if the server is closed,
    MetricsError if ``evaluate`` does not return numbers, and RoundError if a step gives values that are not finite, or
    if no answer of a connected member counts for a version, so that there can be no next one.
    """
    wrong = {
        "versions": versions < 1,
        "buffer": buffer < 1,
        "deadline": deadline is not None and deadline <= 0,
        "staleness": staleness < 0,
        "most_stale": most_stale is not None and most_stale < 0,
        "learning_rate": learning_rate <= 0,
    }
    for name, is_so in wrong.items():
        if is_so:
            raise PlanError(f"{name} is too small", "Give a larger number")
    if record is not None and resume is not None:
        raise PlanError("a record is resumed where it is", "Give record or resume, not both")
    plain = bounded_json.read_object(config_of({"round": 1}, config))
    bound = bind(app.model(), own_tensors(app, None))
    rule = (lambda values: SGD(values, learning_rate)) if optimizer is None else (lambda v: TorchRule(v, optimizer))
    step = ServerStep(bound.arena.core, bound.trained, rule)
    kept: VersionRecord | None = None
    folder = record if resume is None else resume
    if folder is not None:
        named = None if optimizer is None else step.name
        settings = Settings(buffer, staleness, most_stale, learning_rate, named)
        kept = _opened(Path(folder), settings, bound, step, versions, is_resumed=resume is not None)
    job = _Job(server, bound, plain, buffer, deadline=deadline, exponent=staleness, most_stale=most_stale, record=kept)

    def evaluate() -> Mapping[str, int | float]:
        return numbers("evaluate", app.evaluate(bound.model, data))  # type: ignore[attr-defined]

    return job.run(versions, step, None if data is None else evaluate)


def _opened(
    folder: Path, settings: Settings, bound: Binding, step: ServerStep, versions: int, *, is_resumed: bool
) -> VersionRecord:
    """Open the record. If it is resumed, the model and the rule get what it has. Raises RecordError, RoundError."""
    record = VersionRecord(folder, settings, resume=is_resumed)
    try:
        if record.done >= versions:
            raise RecordError(f"all {record.done} versions of {folder} are done", "Give a larger number of versions")
        step.load(record.restore(bound.arena.core.layout.tensors, bytes_of(bound.arena.core)))
        bound.restore("the record was read")
    except BaseException:
        record.close()
        raise
    return record


class _Job:
    """The server's side: a thread for each member, and the buffer that this thread fills from their answers."""

    def __init__(
        self,
        server: TaskServer,
        bound: Binding,
        config: Mapping[str, object],
        size: int,
        *,
        deadline: float | None,
        exponent: float,
        most_stale: int | None,
        record: VersionRecord | None,
    ) -> None:
        self._server, self._bound, self._config = server, bound, config
        self._size, self._deadline, self._most_stale = size, deadline, most_stale
        kinds = {name: (kind, list(shape)) for name, kind, shape, _ in bound.arena.layout.tensors}
        # Integers, as numbers of batches, are not averaged: the server keeps its own.
        self._returns = {name: (kind, shape) for name, (kind, shape) in kinds.items() if kind.startswith(("F", "BF"))}
        self._buffer = Buffer(list(self._returns), exponent)
        self._answers: queue.Queue[tuple[str, int, Reply, Arena | None]] = queue.Queue(WAITING)
        self._changed = threading.Condition()
        self._record = record
        self._version, self._model = 0 if record is None else record.done, self._copy()
        self._over = False
        self._failure: Exception | None = None
        self._threads: dict[str, threading.Thread] = {}

    def _copy(self) -> Tensors:
        return Tensors({name: array.copy() for name, array in self._bound.arena.items()})

    def run(self, versions: int, step: ServerStep, evaluate: Evaluate | None) -> Iterator[Version]:
        began = time.monotonic() - (0.0 if self._record is None else self._record.seconds)
        try:
            for number in range(self._version + 1, versions + 1):
                updates, refused = self._filled()
                step.before()
                self._buffer.take(self._bound.arena.core)
                step.after(())
                self._bound.restore("the step")
                with self._changed:
                    self._version, self._model = number, self._copy()
                    self._changed.notify_all()
                metrics: Mapping[str, int | float] = {} if evaluate is None else evaluate()
                self._bound.restore("evaluate()")
                version = Version(number, time.monotonic() - began, updates, refused, metrics)
                self._keep(version, step)
                yield version
        finally:
            self._end()
            if self._record is not None:
                self._record.close()

    def _keep(self, version: Version, step: ServerStep) -> None:
        """Write a version to the record, if there is one. The buffer is empty now, so it needs no place there."""
        if self._record is not None:
            row = {"round": version.number, **{key: value for key, value in vars(version).items() if key != "number"}}
            core = self._bound.arena.core
            self._record.keep(row, core.layout.tensors, bytes_of(core), step.state())

    def _filled(self) -> tuple[list[Update], dict[str, str]]:
        """Wait until the buffer is full, or the deadline is over and it has an update."""
        ends = None if self._deadline is None else time.monotonic() + self._deadline
        updates: list[Update] = []
        refused: dict[str, str] = {}
        waiting: dict[str, str] = {}  # members that get nothing before the next version, each with the reason
        while len(updates) < self._size and not (updates and ends is not None and time.monotonic() >= ends):
            if self._failure is not None:
                raise self._failure
            connected = self._begin_members()
            left = WAIT_SLICE if ends is None or not updates else min(WAIT_SLICE, max(0.0, ends - time.monotonic()))
            try:
                member, version, reply, update = self._answers.get(timeout=left)
            except queue.Empty:
                if connected and self._threads.keys() <= waiting.keys() and not (updates and ends is not None):
                    raise _all_refused(waiting) from None
                continue
            taken = self._taken(member, version, reply, update)
            if isinstance(taken, Update):
                updates.append(taken)
            else:
                refused[member] = taken
                _log.warning("%s: %s", member, taken)
                if version == self._version and not _is_gone(reply):
                    waiting[member] = taken
        return updates, refused

    def _taken(self, member: str, version: int, reply: Reply, update: Arena | None) -> Update | str:
        """Add an answer to the buffer; return what it was, or why it does not count."""
        if update is None:
            return reply.reason or reply.state
        stale = self._version - version
        if self._most_stale is not None and stale > self._most_stale:
            return f"its model was {stale} versions old, over {self._most_stale}"
        head = reply.head if isinstance(reply.head, dict) else {}
        metrics = head.get("metrics")
        kept = metrics if isinstance(metrics, dict) else {}
        return Update(member, stale, self._buffer.add(update, stale), reply.weight, kept)

    def _begin_members(self) -> list[str]:
        """Start a thread for each connected member that has none, and forget those that ended; return the members."""
        self._threads = {member: thread for member, thread in self._threads.items() if thread.is_alive()}
        members = self._server.members
        for member in members:
            if member not in self._threads:
                self._threads[member] = threading.Thread(target=self._drive, args=(member,), daemon=True)
                self._threads[member].start()
        return members

    def _drive(self, member: str) -> None:
        """Work with a member until it is gone or the job is over. An exception ends the job."""
        try:
            self._work_with(member)
        except Exception as error:  # noqa: BLE001 - the caller's thread raises it
            self._failure = error

    def _work_with(self, member: str) -> None:
        """Give a member one model after the other."""
        while True:
            with self._changed:
                version, model = self._version, self._model
            if self._is_over():
                return
            head = {"config": {**self._config, "round": version + 1}, VERSION: version}
            with self._server.send(head, model, to=member, reduce="mean", returns=self._returns) as task:
                while (reply := self._waited(task)) is None:
                    if self._is_over():
                        return
                update = task.mean_tensors().arena if reply.done else None
            if not self._put((member, version, reply, update)) or _is_gone(reply):
                return
            if not reply.done:  # the member gets the next version, and not this one again and again
                self._wait_for_newer(version)

    def _wait_for_newer(self, version: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_over() or self._version > version)

    def _is_over(self) -> bool:
        return self._over

    @staticmethod
    def _waited(task: Task) -> Reply | None:
        """Return the member's reply; None if it has not come within a slice of time."""
        try:
            return task.next_reply(WAIT_SLICE)
        except _core.CoreError as error:
            if error.kind != "timeout":
                raise
            return None

    def _put(self, answer: tuple[str, int, Reply, Arena | None]) -> bool:
        """Hand an answer to the server's thread; return whether it still wants one."""
        while not self._is_over():
            try:
                self._answers.put(answer, timeout=WAIT_SLICE)
            except queue.Full:
                continue
            return True
        return False

    def _end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        for thread in self._threads.values():
            thread.join()


def _is_gone(reply: Reply) -> bool:
    """Return whether the member gets no further model for now."""
    return reply.state in ("lost", "cancelled")


def _all_refused(reasons: Mapping[str, str]) -> RoundError:
    named = "; ".join(f"{member}: {reason}" for member, reason in sorted(reasons.items()))
    return RoundError(
        f"the answers of all {len(reasons)} members do not count, so no further version can come: {named}",
        "See to what the reasons name, and start again",
    )


def fedbuff_client(client: TaskClient, app: App, *, data: object, residual: Path | str | None = None) -> int:
    """Train ``app``'s model on ``data`` for each task that ``client`` gets of ``fedbuff``; return how many, at the end.

    The app's ``train`` gets a config with ``round``, one more than the version that it begins with. If it raises, the
    server gets the reason, and the next version goes on. If the client has ``compression``, updates are rounded by it,
    and what that leaves out is in later updates; the file ``residual`` keeps it for a client that starts anew. Raises
    CoreError if the server is gone for good, ModelError, RecordError.
    """
    feedback = None if client.compression is None else ErrorFeedback(client.compression, residual)
    bound = bind(app.model(), own_tensors(app, None))
    party = AppClient(app, bound, data, note=lambda text: _log.warning("%s: %s", client.name, text))

    def work(task: Given) -> tuple[dict[str, object], Mapping[str, Values], float]:
        received = {name: np.array(array) for name, array in Arena.items(_arena_of(task, bound))}
        for name, array in received.items():
            bound.arena[name][...] = array
        table = task.head.get("config") if isinstance(task.head, dict) else None
        samples, metrics = party.train(ReceivedConfig(table if isinstance(table, dict) else {}))
        changed = {
            name: (bound.arena[name] - array).astype(array.dtype)
            for name, array in received.items()
            if array.dtype.kind not in "iub"
        }
        head: dict[str, object] = {"metrics": returned("train", metrics)}
        return head, changed if feedback is None else feedback.compressed(task.number, changed), float(samples)

    if feedback is None:
        return client.run(work)
    try:
        return client.run(work, ended=lambda number, how: feedback.settle(number, counts=how == "accepted"))
    finally:
        feedback.close()


def _arena_of(task: Given, bound: Binding) -> Arena:
    """Return the model of a task. Raises PlanError if it is not that of this member's app."""
    arena: Arena | None = getattr(task.tensors, "arena", None)
    difference = (
        "a task has no model"
        if arena is None
        else arena.layout.difference(bound.arena.layout, "in the server's model", "in this one")
    )
    if arena is None or difference is not None:
        raise PlanError(f"the model differs from the server's: {difference}", "Use the same app at both ends")
    return arena
