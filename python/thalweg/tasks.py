"""Tasks: the server sends a head and named tensors to members; each member answers with its own head and tensors.

``TaskServer`` and ``TaskClient`` are for everything except rounds of federated averaging: evaluation on clients, layers
that stay personal, several models at once. docs/how-to/tasks.md shows how to use them.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

from thalweg import _core, bounded_json, wire
from thalweg.apps.values import encoded
from thalweg.bounded_json import JsonError
from thalweg.errors import PlanError, leaving
from thalweg.outcome import Transfer
from thalweg.tensors.arena import Arena
from thalweg.tensors.named import NOTHING, Named, Received, Tensors

_log = logging.getLogger("thalweg")
# The key of thalweg's own data in a head on the wire. Such a head has the user's head under "head".
OWN: Final = "thalweg"
# Start of the reason if a result's head is not JSON within the limits.
UNREADABLE: Final = "its head cannot be read"
# A function that accepts or refuses a result, from the member's name, the head and the weight. It returns the reason
# for a refusal, else None.
Judge = Callable[[str, Any, float], str | None]


@dataclass(frozen=True)
class Reply:
    """The state of one member's part in a task, with its result if there is one."""

    member: str
    #: ``done``, ``failed`` (the member failed, or its result could not be used), ``lost``, ``late`` or ``cancelled``.
    state: Literal["done", "failed", "lost", "late", "cancelled"]
    #: Why the state is not ``done``; None if it is.
    reason: str | None
    head: Any
    #: The result's tensors; none if they were folded. NumPy arrays, or PyTorch tensors if the member sent such.
    tensors: Named = field(repr=False)
    weight: float
    #: Fraction of the result's tensors that arrived, 0 to 1. It is below 1 only if ``missing`` allows that.
    coverage: float
    #: The transfers of the task and of its result, as described in docs/reference/outcome.md.
    transfers: list[Transfer] = field(repr=False)

    @property
    def done(self) -> bool:
        """Whether the member sent a result."""
        return self.state == "done"


class Task:
    """A task that was sent. Iterate over it for replies, in the order in which they arrive."""

    def __init__(
        self, core: _core.TaskServer, number: int, keep: Callable[[int, Reply], None], torch: Iterable[str]
    ) -> None:
        self.number, self._torch = number, torch
        self._core, self._keep = core, keep
        self._replies: list[Reply] = []
        self._over = False
        self._lock = threading.Lock()

    def next_reply(self, timeout: float | None = None) -> Reply | None:
        """Return the next reply, or None after all members have replied.

        Raises CoreError of kind ``timeout`` if none arrives within ``timeout`` seconds.
        """
        with self._lock:
            if self._over:
                return None
            received = self._core.next_reply(self.number, timeout)
            if received is None:
                self._over = True
                return None
            reply = _reply(received)
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

        The mean is a PyTorch tensor if the task's tensor is one, else a NumPy array. Raises CoreError of kind ``task``
        if no result arrived, or if the task does not reduce.
        """
        return dict(Received(self.mean_tensors().arena, self._torch, shared=False))

    def mean_tensors(self) -> Tensors:
        """Return ``mean()`` as tensors that can be sent again without a copy. Raises CoreError of kind ``task``."""
        self.replies()
        return Tensors.of(Arena(self._core.mean(self.number)), self._torch)

    def cancel(self) -> None:
        """Accept no more results. Members that have not answered get the state ``cancelled``."""
        self._core.cancel(self.number)

    def close(self) -> None:
        """Cancel the task if it is open, and free what the server stores of it. Idempotent."""
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
        options: Mapping[str, str | int | float | bool] | None = None,
        record: Path | str | None = None,
        compression: str | None = None,
    ) -> None:
        """Listen at ``listen``; members connect with ``TaskClient``.

        ``pki`` is a folder made by ``thalweg pki init``; an address beyond loopback needs one. A member that is
        disconnected for more than ``grace`` seconds loses its part in a task. A member gets at most ``ahead`` tasks at
        a time, and at most ``max_open`` tasks are open.

        Results that the application has not taken yet stay in memory, up to ``memory`` bytes. Beyond that they go to
        unnamed files in the folder ``spill``. One result may have ``max_result`` bytes. With ``deterministic`` a mean
        has the same bits in any order of arrival. ``options`` are the transport's own. ``record`` is a file that gets a
        JSON line for each reply, with its transfers. With ``compression``, as ``int8`` or ``topk:0.01``, values that a
        member has rounded by it (``ErrorFeedback``) arrive in few bits, and all others as they are. Members must have
        the same.

        Raises LinkError, PlanError, CoreError.
        """
        from thalweg.plan import Plan
        from thalweg.plan.options import check_task_scheme, compressing
        from thalweg.transports import links

        table = {
            "transport": {"url": listen},
            "security": {} if pki is None else {"pki": str(pki)},
            "compression": {} if compression is None else {"scheme": compression},
        }
        plan = Plan.of(table, "the server's arguments")
        check_task_scheme(compression)
        trust = links.server_trust(plan.security, listen)
        config = {
            "transport": {"tls": trust.tls, "own": dict(options or {})},
            "issuer": trust.issuer,
            "revoked": trust.revoked,
            "job": secrets.randbits(63),
            "grace": grace,
            "ahead": ahead,
            "max_open": max_open,
            "memory": memory,
            "max_result": max_result,
            "spill": None if spill is None else str(spill),
            "precision": "exact" if deterministic else "f32",
            "layers": compressing(compression),
        }
        core = _core.TaskServer(listen, wire.encode({k: v for k, v in config.items() if v is not None}))
        self._drive(core, None if record is None else Path(record))

    @classmethod
    def over(cls, core: _core.TaskServer) -> TaskServer:
        """Return a server that uses a core's server which listens already.

        Runs create theirs with the options of a plan.
        """
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
        return sorted(wire.decode(list[str], self._core.clients()))

    def wait(self, members: int, timeout: float | None = None) -> int:
        """Wait until ``members`` members are connected or ``timeout`` seconds are over; return how many are."""
        return self._core.wait(members, timeout)

    def send(
        self,
        head: Any,
        tensors: Named | None = None,
        *,
        to: str | Sequence[str] | None = None,
        deadline: float | None = None,
        reduce: Literal["mean"] | None = None,
        returns: Sequence[str] | Mapping[str, tuple[str, Sequence[int]]] | None = None,
        missing: float | Mapping[str, float] = 0.0,
        judge: Judge | None = None,
    ) -> Task:
        """Send a task and return at once.

        ``head`` is any JSON value. ``tensors`` are NumPy arrays or PyTorch tensors by name, and arrive as the same
        kind. Make ``Tensors`` of them to send the same ones again. ``to`` names members, by default all that are
        connected. A named member that is not connected may still come. A member that has not answered after
        ``deadline`` seconds is late.

        With ``reduce="mean"`` the server folds results as they arrive, and ``Task.mean`` is their weighted mean. The
        server then holds the sums and the results that wait to be folded. Those take at most 64 MiB, or one result if
        it is larger, whatever the number of members.

        ``returns`` then says which tensors results have. It names some of the task's tensors, by default all. Or it
        maps each name to an element type, for example ``F32``, and a shape. The server refuses a result with other
        tensors before it allocates or receives anything for it. The state of that reply is ``failed``, and the reason
        names the first tensor that differs.

        ``missing`` is the fraction of each such tensor, 0 to 1, that may be missing from a result if the transport
        loses data, as ``unifl`` and ``ltp`` do. Or it gives fractions by name, and 0 for all others. Losses beyond the
        fraction are sent again. The mean of an element is over the members whose element arrived; if there are none, it
        is the task's own value. So ``missing`` must be 0 for a tensor that the task does not have with this element
        type and shape.

        ``judge`` is called with a member's name, the head and the weight of each result, before any byte of the
        result's tensors is received. The server calls it from its own threads. If it returns a text, the result is
        refused for this reason: the reply is ``failed``, and nothing of the result is in the mean. The same happens if
        ``judge`` raises, or if the head is not JSON within the limits of ``thalweg.bounded_json``.

        Raises ModelError for tensors that cannot be sent, PlanError for an invalid ``returns`` or ``missing``, and
        CoreError of kind ``task`` if too many tasks are open.
        """
        packed = _packed(tensors)
        names = self.members if to is None else [to] if isinstance(to, str) else list(to)
        if reduce is None and returns is not None:
            raise PlanError("only results that are folded have stated tensors", 'Reduce them: reduce="mean"')
        fold = None if reduce is None else _folded(packed, returns)
        shares = _shares(fold, missing)
        arena, number = (None, 0) if packed is None else (packed.arena.core, packed.id)
        core_judge = _judging(judge, fold)
        task = self._core.open(_encode(head, packed), arena, number, names, deadline, fold, shares, core_judge)
        self._log_notes()
        torch = () if packed is None or isinstance(returns, Mapping) else packed.torch
        return Task(self._core, task, self._keep, torch)

    def forget(self, member: str, why: str = "") -> None:
        """Stop waiting for a member whose process has ended for good. ``why`` is the reason in its replies."""
        self._core.forget(member, why)

    def absent(self) -> dict[str, str]:
        """Return the members that were connected and are not any more, each with the reason."""
        return {name: reason for name, reason, _ in wire.decode(list[tuple[str, str, bool]], self._core.departed())}

    def resent(self, timeout: float) -> str:
        """Return the segments retransmitted to each member (``down``) and by it (``up``), as JSON by name.

        A number is null if a transport cannot count. Waits at most ``timeout`` seconds for counts that have not arrived
        yet.
        """
        return self._core.resent(timeout)

    def _log_notes(self) -> None:
        for note in self._core.notes():
            _log.info("%s", note)

    def _keep(self, task: int, reply: Reply) -> None:
        self._log_notes()
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
            self._record.write(wire.encode(line) + "\n")
            self._record.flush()

    def close(self, reason: str = "the job is over") -> None:
        """Tell every member ``reason``, why the job ends, and stop. Open tasks end as cancelled. Idempotent."""
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
    """A task as a member has it. The member answers or refuses it once.

    ``tensors`` are NumPy arrays: read-only views of the received bytes. They are PyTorch tensors if the server sent
    such; those are copies. Copy an array before you change it.
    """

    def __init__(
        self, core: _core.TaskClient, number: int, head: bytes, arena: _core.Arena | None, ends: float | None
    ) -> None:
        self.number = number
        self.head, self.tensors = _received(head, arena, shared=True)
        self._core, self._ends = core, ends

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the answer is late; None if the task has no deadline."""
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether the server no longer wants the answer."""
        return not self._core.is_open(self.number)

    def answer(self, head: Any = None, tensors: Named | None = None, *, weight: float = 1.0) -> None:
        """Send a result. ``head`` is any JSON value, and ``tensors`` may have any names and shapes.

        ``weight`` counts if the server folds results. ``self.tensors`` itself and ``Tensors`` are sent without a copy;
        anything else is copied first. A late result is dropped without an error. Raises ModelError, and CoreError of
        kind ``task`` for a second answer.
        """
        packed = _packed(tensors)
        arena, text = None if packed is None else packed.arena.core, _encode(head, packed)
        self._say(lambda core: core.answer(self.number, text, arena, weight))

    def refuse(self, reason: str) -> None:
        """Tell the server that there will be no result, and the ``reason``."""
        self._say(lambda core: core.refuse(self.number, reason))

    def _say(self, say: Callable[[_core.TaskClient], None]) -> None:
        try:
            say(self._core)
        except _core.CoreError:
            if not self.over:
                raise


class TaskClient:
    """A member that answers tasks, and reconnects by itself when the link breaks. Iterate over it for tasks."""

    def __init__(
        self,
        url: str,
        *,
        name: str,
        token_file: Path | str | None = None,
        timeout: float = 30.0,
        outage: float = 0.0,
        compression: str | None = None,
    ) -> None:
        """Begin to connect to the server at ``url``; ``timeout`` is how many seconds to go on trying.

        After its link was lost it tries for ``outage`` seconds, if that is longer than ``timeout``.

        No two members of a server have the same ``name``. ``token_file`` is a file made by ``thalweg pki issue NAME
        --role task-member``. ``compression`` is that of the server. Raises LinkError, PlanError.
        """
        from thalweg.plan.options import check_task_scheme, compressing
        from thalweg.transports import links, pki

        check_task_scheme(compression)
        token = None if token_file is None else pki.read_token(Path(token_file))
        trust = links.remote_trust(url, token, None, None, "auto")
        config = {
            "transport": {"tls": trust.tls},
            "token": trust.token,
            "timeout": timeout,
            "outage": outage,
            "layers": compressing(compression),
        }
        #: How values that ``ErrorFeedback`` has rounded are sent; None if all are sent as they are.
        self.compression = compression
        self.name = name
        self._core = _core.TaskClient(url, name, wire.encode(config))

    @classmethod
    def over(cls, core: _core.TaskClient, name: str) -> TaskClient:
        """Return a member that uses a core's member which has begun to connect.

        Runs create theirs with the options of a plan.
        """
        made = cls.__new__(cls)
        made.name, made._core, made.compression = name, core, None  # noqa: SLF001 - of this class
        return made

    def __iter__(self) -> Iterator[Given]:
        return self

    def __next__(self) -> Given:
        while (event := self._core.next()) is not None:
            what, number, head, _, arena, within, reason = event
            if what == "rejected":
                _log.warning("%s: the result of task %d was refused: %s", self.name, number, reason)
            if what != "task":
                self._ended(number, what)
            else:
                ends = None if within is None else time.monotonic() + within
                try:
                    return Given(self._core, number, head, arena, ends)
                except JsonError as error:
                    self._core.refuse(number, f"the task's head cannot be read: {error}")
        raise StopIteration

    # Gets each task that is over, and how it ended; see ``run``.
    _on_end: Callable[[int, str], object] | None = None

    def _ended(self, number: int, how: str) -> None:
        if self._on_end is not None:
            self._on_end(number, how)

    def run(self, work: Callable[[Given], Any], *, ended: Callable[[int, str], object] | None = None) -> int:
        """Answer tasks until the job is over; return how many.

        ``work`` returns a head, or ``(head, tensors)``, or ``(head, tensors, weight)``, or None if it has answered the
        task itself. If it raises, or if its result cannot be sent, the task is refused with that reason, and the next
        task goes on. ``ended(number, how)`` is called in this thread for each task that is over: ``accepted``; or
        ``rejected``, ``closed`` (the server does not want the result any more) or ``refused`` (by this member). Raises
        CoreError if the server is gone for good, and what ``ended`` raises.
        """
        self._on_end = ended
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
        except Exception as error:  # noqa: BLE001 - the server gets the reason, and other tasks go on
            _log.warning("%s: task %d failed", self.name, task.number, exc_info=True)
            task.refuse(f"{type(error).__name__}: {error}")
            self._ended(task.number, "refused")
            return False
        return True

    def close(self, reason: str = "the client ends") -> None:
        """Leave the job for good, and tell the server the ``reason``. Idempotent."""
        self._core.close(reason)

    def __enter__(self) -> TaskClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with leaving(error):
            self.close()


def _packed(tensors: Named | None) -> Tensors | None:
    """Return tensors in a buffer from which they can be sent; None if there are none. Raises ModelError."""
    if not tensors:
        return None
    if isinstance(tensors, Tensors):
        return tensors
    if isinstance(tensors, Received) and tensors.untouched:
        return Tensors.of(tensors.arena, tensors.torch)
    return Tensors(tensors)


def _encode(head: Any, tensors: Tensors | None) -> bytes:
    """Return a head as JSON, with the names of the tensors that the receiver gets as PyTorch's. Raises PlanError."""
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
    """Return the judge that the core calls: it refuses a result whose head cannot be read, else it calls ``judge``.

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
    """Return the user's head and its tensors; ``shared`` as in ``Received``. Raises JsonError."""
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
    """Return the fraction of each tensor of a mean that may be missing; None if nothing may."""
    shares = missing.values() if isinstance(missing, Mapping) else [missing]
    if not any(shares):
        return None
    if fold is None:
        raise PlanError("only of results that are folded may anything be missing", 'Reduce them: reduce="mean"')
    wrong = next((share for share in shares if not 0 <= share <= 1), None)
    if wrong is not None:
        raise PlanError(f"{wrong!r} is no share that may be missing", "Use a number from 0 to 1")
    names = [name for name, *_ in fold.tensors]
    if not isinstance(missing, Mapping):
        return [missing] * len(names)
    unknown = sorted(missing.keys() - set(names))
    if unknown:
        raise PlanError(f"{unknown[0]!r} is none of the results' tensors", f"Choose from {', '.join(names)}")
    return [missing.get(name, 0.0) for name in names]


def _reply(received: tuple[str, str, str | None, bytes, float, float, _core.Arena | None, str]) -> Reply:
    member, state, reason, head, weight, coverage, arena, transfers = received
    ways: list[Transfer] = wire.plain(transfers)
    try:
        content, tensors = _received(head, arena, shared=False)
    except JsonError as error:
        return Reply(member, "failed", f"{UNREADABLE}: {error}", None, NOTHING, weight, 0.0, ways)
    return Reply(member, state, reason, content, tensors, weight, coverage, ways)  # type: ignore[arg-type]


__all__ = ["Given", "Reply", "Task", "TaskClient", "TaskServer", "Tensors"]
