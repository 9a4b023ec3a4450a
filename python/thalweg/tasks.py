"""Tasks: the server sends a head and named tensors to any members, and each answers with a head and tensors of its own.

``TaskServer`` and ``TaskClient`` are for whatever is not rounds of federated averaging: evaluation on clients, layers
that stay personal, several models at once. docs/how-to/tasks.md shows them at work.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

from thalweg import _core, bounded_json
from thalweg.apps.values import encoded
from thalweg.bounded_json import JsonError
from thalweg.errors import PlanError, leaving
from thalweg.tensors.arena import Arena
from thalweg.tensors.named import NOTHING, Named, Received, Tensors

_log = logging.getLogger("thalweg")
# The key of thalweg's own data in a head that is sent. Such a head has the user's under "head".
OWN: Final = "thalweg"
# How the reason begins when a result's head is no JSON within bounds.
UNREADABLE: Final = "its head cannot be read"
# Gets the member's name, the head and the weight of a result; returns why the result is refused, or None.
Judge = Callable[[str, Any, float], str | None]


@dataclass(frozen=True)
class Reply:
    """What became of one member's part in a task."""

    member: str
    #: ``done``, ``failed`` (it said so, or its result could not be used), ``lost``, ``late`` or ``cancelled``.
    state: Literal["done", "failed", "lost", "late", "cancelled"]
    #: Why, unless it is done.
    reason: str | None
    head: Any
    #: The result's tensors; none if they were folded. NumPy arrays, or PyTorch tensors where the member sent such.
    tensors: Named = field(repr=False)
    weight: float
    #: How much of the result's tensors came, 0 to 1; less than 1 only where something may be ``missing``.
    coverage: float
    #: The way there and the way back, as docs/reference/outcome.md has transfers.
    transfers: list[dict[str, Any]] = field(repr=False)

    @property
    def done(self) -> bool:
        """Whether there is a result."""
        return self.state == "done"


class Task:
    """A task that was sent: iterate over it for replies, in the order in which they come."""

    def __init__(
        self, core: _core.TaskServer, number: int, keep: Callable[[int, Reply], None], torch: Iterable[str]
    ) -> None:
        self.number, self._torch = number, torch
        self._core, self._keep = core, keep
        self._replies: list[Reply] = []
        self._over = False
        self._lock = threading.Lock()

    def next_reply(self, timeout: float | None = None) -> Reply | None:
        """Return the next reply, or None when all members' are in.

        Raises CoreError of kind ``timeout`` if none comes within so many seconds.
        """
        with self._lock:
            if self._over:
                return None
            told = self._core.next_reply(self.number, timeout)
            if told is None:
                self._over = True
                return None
            reply = _reply(told)
            self._replies.append(reply)
        self._keep(self.number, reply)
        return reply

    def __iter__(self) -> Iterator[Reply]:
        at = 0
        while True:
            while at < len(self._replies):
                yield self._replies[at]
                at += 1
            if self.next_reply() is None and at == len(self._replies):
                return

    def replies(self) -> dict[str, Reply]:
        """Wait for all replies and return them by member."""
        return {reply.member: reply for reply in self}

    def mean(self) -> dict[str, Any]:
        """Wait for all replies of a task with ``reduce="mean"`` and return the weighted mean of their tensors.

        The mean of a task's PyTorch tensors is one, any other is a NumPy array. Raises CoreError of kind ``task`` if no
        result came, or the task does not reduce.
        """
        return dict(Received(self.mean_tensors().arena, self._torch, shared=False))

    def mean_tensors(self) -> Tensors:
        """Return ``mean()`` as tensors that can be sent again without a copy. Raises CoreError of kind ``task``."""
        self.replies()
        return Tensors.of(Arena(self._core.mean(self.number)), self._torch)

    def cancel(self) -> None:
        """Want no more results; members that have not answered end as ``cancelled``."""
        self._core.cancel(self.number)

    def close(self) -> None:
        """Cancel what is open, and free what the server keeps of the task. Idempotent."""
        self._core.release(self.number)

    def __enter__(self) -> Task:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with leaving(error):
            self.close()


class TaskServer:
    """A server that sends tasks to named members. Use it as a context manager, or close it.

    Any number of tasks may be open at once, and all methods may be called from several threads.
    """

    def __init__(
        self,
        *,
        listen: str = "tcp://127.0.0.1:0",
        pki: Path | str | None = None,
        grace: float = 10.0,
        ahead: int = 4,
        max_open: int = 4096,
        memory: int = 1 << 30,
        max_result: int = 8 << 30,
        spill: Path | str | None = None,
        deterministic: bool = False,
        options: Mapping[str, Any] | None = None,
        record: Path | str | None = None,
    ) -> None:
        """Listen at ``listen``; members connect with ``TaskClient``.

        ``pki`` is a folder of ``thalweg pki init``; beyond loopback there must be one. A member that is away for more
        than ``grace`` seconds loses its part in a task. It is given at most ``ahead`` tasks at a time. Results that
        wait to be taken lie in memory, up to ``memory`` bytes, and beyond that in files without a name in the folder
        ``spill``; one may have ``max_result`` bytes. ``deterministic`` makes means the same bits in any order of
        arrival. ``options`` are the transport's own. ``record`` is a file that gets a JSON line for each reply, with
        its transfers.
        Raises LinkError, PlanError, CoreError.
        """
        from thalweg.plan import Plan
        from thalweg.transports import links

        table = {"transport": {"url": listen}, "security": {} if pki is None else {"pki": str(pki)}}
        plan = Plan.of(table, "the server's arguments")
        trust = links.server_trust(plan.security, listen)
        config = {
            "transport": {"tls": trust.get("tls"), "own": dict(options or {})},
            "issuer": trust.get("issuer"),
            "job": secrets.randbits(63),
            "grace": grace,
            "ahead": ahead,
            "max_open": max_open,
            "memory": memory,
            "max_result": max_result,
            "spill": None if spill is None else str(spill),
            "precision": "exact" if deterministic else "f32",
        }
        core = _core.TaskServer(listen, json.dumps({k: v for k, v in config.items() if v is not None}))
        self._drive(core, None if record is None else Path(record))

    @classmethod
    def over(cls, core: _core.TaskServer) -> TaskServer:
        """Return a server over one of the core's that listens already; runs make theirs with options of a plan."""
        made = cls.__new__(cls)
        made._drive(core, None)  # noqa: SLF001 - of this class
        return made

    def _drive(self, core: _core.TaskServer, record: Path | None) -> None:
        self._record = None if record is None else record.open("a", encoding="utf-8")
        self._writing = threading.Lock()
        self._core = core

    @property
    def address(self) -> str:
        """The URL that members connect to, with the port that the system chose."""
        return self._core.address

    @property
    def members(self) -> list[str]:
        """Names of the members that are connected, sorted."""
        return sorted(json.loads(self._core.clients()))

    def wait(self, members: int, timeout: float | None = None) -> int:
        """Wait until so many are connected or ``timeout`` seconds are over; return how many are."""
        return self._core.wait(members, timeout)

    def send(
        self,
        head: Any,
        tensors: Mapping[str, Any] | None = None,
        *,
        to: str | Sequence[str] | None = None,
        deadline: float | None = None,
        reduce: Literal["mean"] | None = None,
        returns: Sequence[str] | Mapping[str, tuple[str, Sequence[int]]] | None = None,
        missing: float | Mapping[str, float] = 0.0,
        judge: Judge | None = None,
    ) -> Task:
        """Send a task and return at once.

        ``head`` is any JSON value. ``tensors`` are NumPy arrays or PyTorch tensors by name, and arrive as such.
        Make ``Tensors`` of them to send the same ones again. ``to`` names members, by default all that are connected;
        one that is not there may still come. Who has not answered after ``deadline`` seconds is late.

        With ``reduce="mean"`` results are folded as they come, and ``Task.mean`` is their mean by weight. The server
        then holds the sums, and results that wait to be folded: 64 MiB of them, or one if it is larger, whatever the
        number of members. ``returns`` names those of the tensors that results have then, by default all; or it is
        a mapping that says which tensors results have, each name with element type, as ``F32``, and shape. A result
        with others is refused before anything is allocated or received for it: its reply is ``failed``, and its reason
        names the first tensor that differs.

        ``missing`` is the share of each such tensor, 0 to 1, that may be missing of a result where the transport loses
        some of it, as ``unifl`` and ``ltp`` do; or it says so by name, and 0 for the others. What is lost beyond it is
        sent again. The mean of an element is over those who sent it; if nobody did, it is the task's own value. So of a
        tensor that the task does not have with this element type and shape nothing may be missing.

        ``judge`` is called with a member's name, the head and the weight of each result, before any byte of the
        result's tensors is received; the server calls it from threads of its own. The text that it returns is the
        reason why the result is refused. The reply is ``failed`` then, and nothing of it is in the mean. The same
        happens if ``judge`` raises, and if the head is no JSON within the bounds of ``thalweg.bounded_json``.

        Raises ModelError for tensors that do not travel, PlanError for ``returns`` or ``missing`` that cannot be,
        CoreError of kind ``task`` if too many tasks are open.
        """
        packed = _packed(tensors)
        names = self.members if to is None else [to] if isinstance(to, str) else list(to)
        if reduce is None and returns is not None:
            raise PlanError("only results that are folded have stated tensors", 'Reduce them: reduce="mean"')
        fold = None if reduce is None else _folded(packed, returns)
        shares = _shares(fold, missing)
        arena, number = (None, 0) if packed is None else (packed.arena.core, packed.id)
        asked = _judging(judge, fold)
        task = self._core.open(_encode(head, packed), arena, number, names, deadline, fold, shares, asked)
        self._tell()
        torch = () if packed is None or isinstance(returns, Mapping) else packed.torch
        return Task(self._core, task, self._keep, torch)

    def forget(self, member: str, why: str = "") -> None:
        """Wait no more for a member whose process has ended for good."""
        self._core.forget(member, why)

    def absent(self) -> dict[str, str]:
        """Return members that were here and are not connected, each with why."""
        return {name: reason for name, reason, _ in json.loads(self._core.departed())}

    def resent(self, timeout: float) -> str:
        """Return the segments retransmitted on the way to each member (``down``) and by it (``up``), as JSON by name.

        Null where a transport cannot tell. Waits at most ``timeout`` seconds for members whose count is still to come.
        """
        return self._core.resent(timeout)

    def _tell(self) -> None:
        for note in self._core.notes():
            _log.info("%s", note)

    def _keep(self, task: int, reply: Reply) -> None:
        self._tell()
        if self._record is None:
            return
        line = {
            "task": task,
            "member": reply.member,
            "state": reply.state,
            "reason": reply.reason,
            "weight": reply.weight,
            "transfers": reply.transfers,
        }
        with self._writing:
            self._record.write(json.dumps(line) + "\n")
            self._record.flush()

    def close(self, reason: str = "the job is over") -> None:
        """Tell every member that the job is over, and stop; open tasks end as cancelled. Idempotent."""
        self._core.close(reason)
        if self._record is not None:
            self._record.close()

    def __enter__(self) -> TaskServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with leaving(error):
            self.close("the job is over" if error is None else "the server has failed")


class Given:
    """A task as a member has it. Answer it, or refuse it, once.

    ``tensors`` are NumPy arrays, read-only views of what came; or PyTorch tensors where the server sent such, which are
    copies. Copy arrays that are to be changed.
    """

    def __init__(
        self, core: _core.TaskClient, number: int, head: bytes, arena: _core.Arena | None, ends: float | None
    ) -> None:
        self.number = number
        self.head, self.tensors = _received(head, arena, shared=True)
        self._core, self._ends = core, ends

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the answer is late; None if it may take any time."""
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether nobody wants the answer any more."""
        return not self._core.is_open(self.number)

    def answer(self, head: Any = None, tensors: Mapping[str, Any] | None = None, *, weight: float = 1.0) -> None:
        """Send a result; its tensors may have any names and shapes. ``weight`` counts where results are folded.

        ``self.tensors`` itself and ``Tensors`` are sent from where they are, anything else is copied first. What comes
        too late is dropped without an error. Raises ModelError, and CoreError of kind ``task`` for a second answer.
        """
        packed = _packed(tensors)
        arena, text = None if packed is None else packed.arena.core, _encode(head, packed)
        self._say(lambda core: core.answer(self.number, text, arena, weight))

    def refuse(self, reason: str) -> None:
        """Say that there will be no result, and why."""
        self._say(lambda core: core.refuse(self.number, reason))

    def _say(self, say: Callable[[_core.TaskClient], None]) -> None:
        try:
            say(self._core)
        except _core.CoreError:
            if not self.over:
                raise


class TaskClient:
    """A member that is given tasks, and comes back by itself when the link breaks: iterate over it for tasks."""

    def __init__(self, url: str, *, name: str, token_file: Path | str | None = None, timeout: float = 30.0) -> None:
        """Begin to connect to the server at ``url``; ``timeout`` is how many seconds to go on trying.

        ``token_file`` is what ``thalweg pki issue NAME --role task-member`` made. Raises LinkError, PlanError.
        """
        from thalweg.transports import links, pki

        token = None if token_file is None else pki.read_token(Path(token_file))
        trust = links.remote_trust(url, token, None, None, "auto")
        config = {"transport": {"tls": trust.get("tls")}, "token": trust.get("token"), "timeout": timeout}
        self.name = name
        self._core = _core.TaskClient(url, name, json.dumps(config))

    @classmethod
    def over(cls, core: _core.TaskClient, name: str) -> TaskClient:
        """Return a member over one of the core's that has begun to connect; runs make theirs with options of a plan."""
        made = cls.__new__(cls)
        made.name, made._core = name, core  # noqa: SLF001 - of this class
        return made

    def __iter__(self) -> Iterator[Given]:
        return self

    def __next__(self) -> Given:
        while (event := self._core.next()) is not None:
            what, number, head, _, arena, within, reason = event
            if what == "rejected":
                _log.warning("%s: the result of task %d was refused: %s", self.name, number, reason)
            if what == "task":
                ends = None if within is None else time.monotonic() + within
                try:
                    return Given(self._core, number, head, arena, ends)
                except JsonError as error:
                    self._core.refuse(number, f"the task's head cannot be read: {error}")
        raise StopIteration

    def run(self, work: Callable[[Given], Any]) -> int:
        """Answer tasks until the job is over; return how many.

        ``work`` returns a head; or a tuple of head and tensors, or of head, tensors and weight; or None if it has
        answered by itself. What it raises, or a result that cannot be sent, becomes the reason of a refusal, and the
        next task goes on. Raises CoreError if the server is gone for good.
        """
        return sum(self._answered(task, work) for task in self)

    def _answered(self, task: Given, work: Callable[[Given], Any]) -> bool:
        """Answer a task, or refuse it with the reason; return whether it was answered."""
        try:
            result = work(task)
            if isinstance(result, tuple):
                head, tensors, *weight = result
                task.answer(head, tensors, weight=weight[0] if weight else 1.0)
            elif result is not None:
                task.answer(result)
        except Exception as error:  # noqa: BLE001 - the server hears of it, and other tasks go on
            _log.warning("%s: task %d failed", self.name, task.number, exc_info=True)
            task.refuse(f"{type(error).__name__}: {error}")
            return False
        return True

    def close(self, reason: str = "the client ends") -> None:
        """Leave for good. Idempotent."""
        self._core.close(reason)

    def __enter__(self) -> TaskClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with leaving(error):
            self.close()


def _packed(tensors: Mapping[str, Any] | None) -> Tensors | None:
    """Return tensors in a buffer of their own, from which they are sent; None if there are none. Raises ModelError."""
    if not tensors:
        return None
    if isinstance(tensors, Tensors):
        return tensors
    if isinstance(tensors, Received) and tensors.untouched:
        return Tensors.of(tensors.arena, tensors.torch)
    return Tensors(tensors)


def _encode(head: Any, tensors: Tensors | None) -> bytes:
    """Return a head as JSON, in which thalweg says which of the tensors are PyTorch's. Raises PlanError."""
    torch = frozenset() if tensors is None else tensors.torch
    if tensors is not None and torch:
        head = {OWN: {"torch": True if len(torch) == len(tensors) else sorted(torch)}, "head": head}
    elif isinstance(head, Mapping) and OWN in head:
        head = {OWN: {}, "head": head}
    text = encoded("the head", head).encode()
    if len(text) <= bounded_json.MOST_BYTES:  # the core refuses a longer one
        try:
            bounded_json.read(text)
        except JsonError as error:
            raise PlanError(f"the head cannot be read back: {error}", "Nest it less deeply") from None
    return text


def _judging(judge: Judge | None, fold: _core.Layout | None) -> Callable[[str, bytes, float], str | None] | None:
    """Return the judge that the core calls. It refuses a result whose head cannot be read, and asks ``judge`` then.

    None if all results are accepted: there is no ``judge``, and results are not folded.
    """
    if judge is None and fold is None:
        return None

    def ask(member: str, text: bytes, weight: float) -> str | None:
        try:
            head, _ = _received(text, None, shared=False)
        except JsonError as error:
            return f"{UNREADABLE}: {error}"
        try:
            return None if judge is None else judge(member, head, weight)
        except Exception as error:  # noqa: BLE001 - the judge is the caller's code; if it fails, the result is refused
            _log.warning("%s: the judge of its result failed", member, exc_info=True)
            return f"its result cannot be judged: {type(error).__name__}: {error}"

    return ask


def _received(text: bytes, core: _core.Arena | None, *, shared: bool) -> tuple[Any, Named]:
    """Return the user's head and the tensors that came with it; ``shared`` as in ``Received``. Raises JsonError."""
    head, torch = bounded_json.read(text) if text else None, None
    if isinstance(head, dict) and isinstance(own := head.get(OWN), dict):
        head, torch = head.get("head"), own.get("torch")
    if core is None:
        return head, NOTHING
    arena = Arena(core)
    if torch is True:
        return head, Received(arena, arena, shared=shared)
    named = [name for name in torch if isinstance(name, str)] if isinstance(torch, list) else []
    return head, Received(arena, named, shared=shared)


def _folded(
    tensors: Tensors | None, returns: Sequence[str] | Mapping[str, tuple[str, Sequence[int]]] | None
) -> _core.Layout:
    if isinstance(returns, Mapping):
        return _core.Layout([(name, dtype, list(shape)) for name, (dtype, shape) in returns.items()])
    if tensors is None:
        raise PlanError("a mean is of the task's tensors, and it has none", "Send tensors, or do not reduce")
    unknown = sorted(set(returns or ()) - set(tensors))
    if unknown:
        raise PlanError(f"{unknown[0]!r} is none of the task's tensors", f"Choose from {', '.join(tensors)}")
    chosen = [one for one in tensors.arena.layout.tensors if returns is None or one[0] in returns]
    return _core.Layout([(name, dtype, shape) for name, dtype, shape, _ in chosen])


def _shares(fold: _core.Layout | None, missing: float | Mapping[str, float]) -> list[float] | None:
    """Return the share of each tensor of a mean that may be missing; None if nothing may."""
    given = missing.values() if isinstance(missing, Mapping) else [missing]
    if not any(given):
        return None
    if fold is None:
        raise PlanError("only of results that are folded may anything be missing", 'Reduce them: reduce="mean"')
    wrong = next((share for share in given if not 0 <= share <= 1), None)
    if wrong is not None:
        raise PlanError(f"{wrong!r} is no share that may be missing", "Use a number from 0 to 1")
    names = [name for name, *_ in fold.tensors]
    if not isinstance(missing, Mapping):
        return [missing] * len(names)
    unknown = sorted(missing.keys() - set(names))
    if unknown:
        raise PlanError(f"{unknown[0]!r} is none of the results' tensors", f"Choose from {', '.join(names)}")
    return [missing.get(name, 0.0) for name in names]


def _reply(told: tuple[str, str, str | None, bytes, float, float, _core.Arena | None, str]) -> Reply:
    member, state, reason, head, weight, coverage, arena, transfers = told
    ways = json.loads(transfers)
    try:
        said, tensors = _received(head, arena, shared=False)
    except JsonError as error:
        return Reply(member, "failed", f"{UNREADABLE}: {error}", None, NOTHING, weight, 0.0, ways)
    return Reply(member, state, reason, said, tensors, weight, coverage, ways)  # type: ignore[arg-type]


__all__ = ["Given", "Reply", "Task", "TaskClient", "TaskServer", "Tensors"]
