"""Members of a Flower run with scripted answers. They all have a token; some lie, leave or never answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from thalweg import _core
from thalweg.errors import ThalwegError
from thalweg.flower import records
from thalweg.flower.client import ASK, received
from thalweg.flower.fold import Slots
from thalweg.tasks import Given, TaskClient, Tensors

KEY: Final = "num-examples"


@dataclass
class Draft:
    """An answer that is about to be sent. ``raw`` is sent as the head if it is not None."""

    head: dict[str, Any]
    body: Mapping[str, npt.NDArray[Any]]
    weight: float
    raw: bytes | None = None


Lie: TypeAlias = Callable[[Draft], object]


def arrays_of(value: float) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that an honest member sends."""
    return {"w": np.full((3, 4), value, np.float32), "steps": np.full(5, int(value), np.int64)}


def content_of(value: float, weight: float) -> RecordDict:
    """Return the records that an honest member sends."""
    arrays = ArrayRecord({name: Array(one) for name, one in arrays_of(value).items()})
    return RecordDict({"arrays": arrays, "metrics": MetricRecord({KEY: weight, "value": value})})


def head_of(content: Any) -> dict[str, Any]:
    return {"created": time.time(), "ttl": 60.0, "usage": {}, "records": content}


def folded(task: Given, content: RecordDict) -> Draft:
    """Return an honest answer to a training whose replies are folded."""
    message, _, _ = received(task.head, task, "")
    slots = Slots.of(message.content)
    assert slots is not None
    fit = slots.fit(content, KEY)
    assert fit is not None
    return Draft(head_of(records.pack(content, fit.values).records), fit.body, fit.weight)


def whole(content: RecordDict) -> Draft:
    """Return an honest answer that is not folded."""
    packed = records.pack(content)
    return Draft(head_of(packed.records), packed.tensors(), 1.0)


def send(task: Given, draft: Draft) -> None:
    if draft.raw is None:
        task.answer(draft.head, draft.body, weight=draft.weight)
    else:
        # Bypass the API, which would encode the head itself.
        task._core.answer(task.number, draft.raw, Tensors(draft.body).arena.core, draft.weight)


def _entry(draft: Draft, at: int) -> list[Any]:
    found: list[Any] = draft.head["records"][0][2][at]
    return found


def _set_entry(*entry: Any) -> Lie:
    return lambda draft: draft.head["records"][0][2].__setitem__(0, list(entry))


def _set_head(**more: Any) -> Lie:
    return lambda draft: draft.head.update(more)


def _set_weight(change: Callable[[float], float]) -> Lie:
    return lambda draft: setattr(draft, "weight", change(draft.weight))


def _set_metrics(*items: Any) -> Lie:
    return lambda draft: draft.head["records"].__setitem__(1, ["metrics", "metrics", list(items)])


#: Lies about a folded reply with valid arrays. The mean must not include such a reply.
FOLDED_LIES: Final[Mapping[str, Lie]] = {
    "records are text": _set_head(records="text"),
    "an error with arrays": _set_head(error=[2, "it raised"]),
    "created is text": _set_head(created="now"),
    "no time to live": _set_head(ttl=0),
    "less than none": _set_head(ttl=-1.0),
    "far too heavy": _set_weight(lambda _: 2.0**40),
    "a little too heavy": _set_weight(lambda weight: weight + 1),
    "too light": _set_weight(lambda weight: weight / 2),
    "no metrics": lambda draft: draft.head["records"].pop(),
    "a weight that is text": _set_metrics([KEY, "7"]),
    "a list of weights": _set_metrics([KEY, [7, 7]]),
    "a negative weight": _set_metrics([KEY, -7]),
    "a true weight": _set_metrics([KEY, True]),
    "another name": _set_entry("v", "folded", "float32", [3, 4]),
    "another shape": _set_entry("w", "folded", "float32", [4, 3]),
    "a shape of 4 TiB": _set_entry("w", "folded", "float32", [1 << 40]),
    "a type that is none": _set_entry("w", "folded", "O", [3, 4]),
    "another type": _set_entry("w", "folded", "float64", [3, 4]),
    "an array that is not folded": _set_entry("w", "along", 0),
    "a name of a list": _set_entry(["w"], "folded", "float32", [3, 4]),
    "two records of arrays": lambda draft: draft.head["records"].append(["more", "arrays", []]),
    "a deep head": lambda draft: setattr(draft, "raw", b"[" * 100_000),
    "no head": lambda draft: setattr(draft, "raw", b""),
    "no JSON": lambda draft: setattr(draft, "raw", b"\xff{"),
    "other arrays": lambda draft: setattr(draft, "body", {"0": np.ones(7, np.float32)}),
}


def _npy(**more: Any) -> bytes:
    from io import BytesIO

    stream = BytesIO()
    np.savez(stream, **more)
    return stream.getvalue()


def _object() -> bytes:
    from io import BytesIO

    stream = BytesIO()
    np.save(stream, np.array([None]), allow_pickle=True)
    return stream.getvalue()


def _huge() -> bytes:
    from io import BytesIO

    stream = BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": (1 << 39,)})
    return stream.getvalue() + bytes(64)


def _bytes(data: bytes, dtype: str = "float32", shape: tuple[int, ...] = (3, 4)) -> Lie:
    def lie(draft: Draft) -> None:
        draft.body = {**draft.body, "9": np.frombuffer(data, np.uint8)}
        _set_entry("w", "bytes", 9, dtype, list(shape), "numpy.ndarray")(draft)

    return lie


def _alone(**more: Any) -> Lie:
    def lie(draft: Draft) -> None:
        draft.body = {}
        draft.head.update(more)

    return lie


def _text_of_records(text: bytes) -> Lie:
    def lie(draft: Draft) -> None:
        draft.body = {**draft.body, "9": np.frombuffer(text, np.uint8)}
        draft.head["records"] = 9

    return lie


#: Lies about a reply that is not folded.
WHOLE_LIES: Final[Mapping[str, Lie]] = {
    "records are text": _set_head(records="text"),
    "an error with arrays": _set_head(error=[2, "it raised"]),
    "an error that is none": _alone(error=[2**70, "x"]),
    "no time to live": _set_head(ttl=0),
    "an array that was folded": _set_entry("w", "folded", "float32", [3, 4]),
    "an archive": _bytes(_npy(w=np.ones((3, 4)))),
    "objects": _bytes(_object(), "object", (1,)),
    "a header of 4 TiB": _bytes(_huge(), "float64", (1 << 39,)),
    "no array at all": _bytes(b"array"),
    "a shape that it has not": _set_entry("w", "along", 0, "float32", [1 << 40]),
    "a negative length": _set_entry("w", "bytes", None, "float32", [-1], ""),
    "a tensor that is not there": _set_entry("w", "along", 77),
    "a deep head": lambda draft: setattr(draft, "raw", b"[" * 100_000),
    "deep records": _text_of_records(b"[" * 100_000),
}


class Member:
    """A member of a Flower run in a thread. Until the job is over, ``answer`` makes its answers to tasks."""

    def __init__(self, address: str, name: str, answer: Callable[[Given, Member], object]) -> None:
        self.name = name
        self.client = TaskClient(address, name=name, timeout=2.0)
        self._answer = answer
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        with suppress(_core.CoreError):  # the server is gone
            for task in self.client:
                self._say(task)

    def _say(self, task: Given) -> None:
        try:
            self._answer(task, self)
        except ThalwegError as error:  # keep the error for the test, which would otherwise wait for ever
            task.refuse(f"the lie cannot be sent: {error}")


def honest(value: float, weight: float, lie: Lie = lambda _: None) -> Callable[[Given, Member], None]:
    """Answer with this value and weight, folded if the task wants that. ``lie`` changes the answer before sending."""

    def answer(task: Given, member: Member) -> None:
        content = content_of(value, weight)
        draft = folded(task, content) if task.head.get("fold") else whole(content)
        lie(draft)
        send(task, draft)

    return answer


def fetched(value: float, weight: float, lie: Lie = lambda _: None) -> Callable[[Given, Member], None]:
    """Refuse to answer until the task wants the reply whole."""

    def answer(task: Given, member: Member) -> None:
        if "fetch" not in task.head:
            task.refuse(ASK)
            return
        draft = whole(content_of(value, weight))
        lie(draft)
        send(task, draft)

    return answer


def silent(task: Given, member: Member) -> None:
    """Never answer."""


def dies(task: Given, member: Member) -> None:
    """Leave before the task is answered."""
    member.client.close("it dies")
