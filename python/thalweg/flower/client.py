"""The client side of a Flower run: a node gets each message as a task, and its ClientApp's reply is the result.

A reply that the server wants folded but that cannot be folded is kept. The server then fetches it by another task.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from flwr.app import Context, Error, Message, Metadata, RecordDict
from typing_extensions import NotRequired

from thalweg import machine
from thalweg.apps import seed_all
from thalweg.errors import AppError
from thalweg.flower import compat, records
from thalweg.flower.app import Config, ConfigValue
from thalweg.flower.fold import Slots
from thalweg.flower.records import HeadError
from thalweg.outcome.core import ClientUsage
from thalweg.tasks import Given, TaskClient, Tensors
from thalweg.tensors.watching import Note, ignore
from thalweg.wire import Table

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

#: The error codes of Flower that a client sends.
CANNOT_LOAD: Final = 1
RAISED: Final = 2
#: A node refuses a task for this reason if its reply cannot be folded. Another task must then fetch the reply.
ASK: Final = "its reply cannot be folded"
#: Maximum number of characters that are sent of an exception's text.
LONGEST_REASON: Final = 4096


def node_id(salt: str, name: str) -> int:
    """Return a node's id in Flower: from 2 to below 2^62, determined by the run's salt and the node's name."""
    return 2 + int.from_bytes(sha256(f"{salt}/{name}".encode()).digest()[:8], "big") % (2**62 - 2)


def message_id(group: str, node: int) -> str:
    """Return the id of one node's message of a group that was sent to several nodes at once."""
    return f"{group}-{node}"


class Apps:
    """The ClientApp of a process. The first message imports it, and it handles one message at a time."""

    def __init__(self, load: Callable[[], ClientApp], *, seeded: bool = True, folder: Path | None = None) -> None:
        """``load`` imports the app, or raises AppError.

        With ``seeded`` the process's random generators are seeded for each message; use it only if nothing else in the
        process uses them. The reason of an error names the line that raised it, if that is in the app's ``folder``.
        """
        self._load, self._seeded, self._folder = load, seeded, folder
        self._app: ClientApp | None = None
        self._lock = threading.Lock()

    def run(self, message: Message, context: Context, seeds: tuple[int, ...]) -> tuple[Message, float]:
        """Return the app's reply, or an error message if it raised one, and the seconds that the app took.

        ``seeds`` determine the app's random numbers, unless the app seeds its generators itself.
        """
        with self._lock:
            started = time.perf_counter()
            try:
                self._app = self._app or self._load()
            except AppError as error:
                traceback.print_exception(error.__cause__ or error)
                location = _location(error.__cause__ or error, self._folder)
                return Message(Error(CANNOT_LOAD, _short(error.cause, location)), reply_to=message), 0.0
            if self._seeded:
                seed_all(*seeds)
            kept = _copied(context.state)
            try:
                reply = self._app(message, context)
                if not isinstance(reply, Message):
                    raise TypeError(f"the ClientApp returned a {type(reply).__name__}, not a Message")
            except Exception as error:  # noqa: BLE001 - it goes to the server, and other messages are still handled
                traceback.print_exc()
                context.state = kept  # as in Flower, a message that failed does not change the state
                reason = _short(f"{type(error)}:<'{error}'>", _location(error, self._folder))
                reply = Message(Error(RAISED, reason), reply_to=message)
            return reply, time.perf_counter() - started


class ReplyHead(TypedDict):
    """The head of a reply: when the app made it, its time to live in seconds, and an error or the encoded records."""

    created: float
    ttl: float
    usage: dict[str, object]
    error: NotRequired[tuple[int, str | None]]
    records: NotRequired[object]


@dataclass
class _Kept:
    """The last reply, which the server may fetch: the group of its message, and the rest of its head."""

    group: str
    reply: Message
    head: ReplyHead


class Node:
    """One node: it handles messages, and keeps its context from one message to the next."""

    def __init__(self, name: str, apps: Apps, node_config: Mapping[str, ConfigValue], note: Note = ignore) -> None:
        self.name, self._apps, self._node_config, self._note = name, apps, dict(node_config), note
        self._context: Context | None = None
        self._kept: _Kept | None = None
        self._count = 0

    def serve(self, client: TaskClient) -> int:
        """Answer messages until the job is over; return how many. Raises CoreError if the server is lost."""
        done = 0
        for task in client:
            if task.over:
                continue
            try:
                self._answer(task)
                done += 1
            except Exception as error:  # noqa: BLE001 - it goes to the server, and other messages are still handled
                self._note(f"refused task {task.number}: {error}")
                task.refuse(f"{type(error).__name__}: {error}")
        return done

    def _answer(self, task: Given) -> None:
        head = task.head if isinstance(task.head, dict) else {}
        if "fetch" in head:
            self._fetch(task, head["fetch"])
            return
        self._kept = None
        message, node, config = received(head, task, self.name)
        if self._context is None:
            self._context = Context(
                run_id=message.metadata.run_id,
                node_id=node,
                node_config=self._node_config,
                state=RecordDict(),
                run_config=config,
            )
        slots = Slots.of(message.content) if head.get("fold") else None
        self._count += 1
        seeds = (_typed(head.get("seed"), int), node, self._count)
        reply, seconds = self._apps.run(message, self._context, seeds)
        if reply.has_error():
            self._note(f"{message.metadata.message_type}: {reply.error.reason}")
        usage = ClientUsage(seconds, machine.cpu_seconds(), machine.peak_rss_bytes())
        self._send(task, head, reply, usage, slots)

    def _send(self, task: Given, head: Table, reply: Message, usage: ClientUsage, slots: Slots | None) -> None:
        own: ReplyHead = {"created": reply.metadata.created_at, "ttl": reply.metadata.ttl, "usage": usage.table()}
        if head.get("fold") is None:
            task.answer(*_whole(reply, own))
            return
        fit = None if slots is None or reply.has_error() else slots.fit(reply.content, str(head["fold"]))
        self._kept = _Kept(str(head.get("id")), reply, own)
        folded = None if fit is None else records.pack(reply.content, fit.values)
        if fit is None or folded is None or folded.body:
            task.refuse(ASK)
        else:
            task.answer({**own, "records": folded.records}, fit.body, weight=fit.weight)

    def _fetch(self, task: Given, group: object) -> None:
        """Send the kept reply, which could not be folded. It is sent only once."""
        kept, self._kept = self._kept, None
        if kept is None or kept.group != group:
            task.refuse("it has no such reply any more")
        else:
            task.answer(*_whole(kept.reply, kept.head))


def received(head: Mapping[str, Any], task: Given, name: str) -> tuple[Message, int, Config]:
    """Return the message in a task, the node's id and the run's configuration. Raises HeadError."""
    try:
        node = node_id(_typed(head["salt"], str), name)
        metadata = Metadata(
            run_id=_typed(head["run"], int),
            message_id=message_id(_typed(head["id"], str), node),
            src_node_id=compat.SERVER_NODE,
            dst_node_id=node,
            reply_to_message_id="",
            group_id=_typed(head["group"], str),
            created_at=time.time() - seconds_of(head["age"]),
            ttl=seconds_of(head["ttl"]),
            message_type=_typed(head["type"], str),
        )
        config = {_typed(key, str): _typed(value, str, int, float, bool) for key, value in head["config"].items()}
        content = records.unpack(head["records"], task.tensors)
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise HeadError(f"the task is no message: {type(error).__name__}: {error}") from error
    return compat.assemble(metadata, content), node, config


def seconds_of(value: object) -> float:
    """Return a finite number of seconds that a peer sent. Raises TypeError or ValueError."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no number of seconds")
    if not math.isfinite(value):
        raise ValueError(f"{value!r} is no time")
    return float(value)


def _typed(value: Any, *kinds: type[Any]) -> Any:
    if type(value) not in kinds:
        raise TypeError(f"{value!r} is no {kinds[0].__name__}")
    return value


def _whole(reply: Message, own: ReplyHead) -> tuple[ReplyHead, Tensors | None]:
    """Return the head and the tensors of a reply that is sent whole, not folded. ``own`` are keys of the head."""
    if reply.has_error():
        return {**own, "error": (int(reply.error.code), reply.error.reason)}, None
    packed = records.pack(reply.content)
    tensors = packed.tensors()
    return {**own, "records": packed.records}, Tensors(tensors) if tensors else None


def _copied(state: RecordDict) -> RecordDict:
    """Return a copy of a node's state: its records are copied, their values are shared."""
    copy = RecordDict()
    for key, record in state.items():
        copy[key] = record.copy()
    return copy


def _location(error: BaseException, folder: Path | None) -> str:
    """Return the last line of an error's traceback in the app's folder, as " at FILE:LINE"; "" if there is none."""
    if folder is None:
        return ""
    lines = traceback.walk_tb(error.__traceback__)
    places = [(Path(frame.f_code.co_filename), number) for frame, number in lines]
    if isinstance(error, SyntaxError) and error.filename is not None:
        places.append((Path(error.filename), error.lineno or 0))
    own = [(path.relative_to(folder), number) for path, number in places if path.is_relative_to(folder)]
    return f" at {own[-1][0]}:{own[-1][1]}" if own else ""


def _short(reason: str, location: str) -> str:
    return f"{reason if len(reason) <= LONGEST_REASON else f'{reason[:LONGEST_REASON]}...'}{location}"
