"""Checks the head of each reply before the reply counts: for a folded reply, before any byte of its arrays arrives.

An accepted head becomes a message, and a refused one an error. So the mean, the strategy and the record all have the
same replies with the same weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, Error, MetricRecord, RecordDict

from thalweg.flower import records
from thalweg.flower.arrays import NUMPY, Values, View, why_unreadable
from thalweg.flower.client import LONGEST_REASON, seconds_of
from thalweg.flower.fold import WEIGHTS, Slots, averaged, only
from thalweg.flower.records import HeadError
from thalweg.tensors.arena import ARRAY_TYPES
from thalweg.wire import Table

UNREADABLE: Final = "it sent no reply that can be read"


@dataclass(frozen=True)
class ReplyContent:
    """A reply as its head describes it: time of creation, time to live in seconds, and its records or its error."""

    created: float
    ttl: float
    content: RecordDict | Error


class Judge:
    """Checks heads and weights of a round's folded replies. Several threads may call it."""

    def __init__(self, slots: Slots, key: str) -> None:
        self.slots, self._key = slots, key
        #: Members whose reply was accepted.
        self.accepted: set[str] = set()

    def __call__(self, member: str, head: Any, weight: float) -> str | None:
        """Return why a reply is refused, or None. The task server calls this before it receives the reply's arrays."""
        try:
            self.read(head, weight)
        except HeadError as error:
            return f"{UNREADABLE}: {error}"
        self.accepted.add(member)
        return None

    def read(self, head: Any, weight: float) -> ReplyContent:
        """Return the content of a folded reply, from its head alone. Raises HeadError."""
        if not isinstance(head, dict) or "error" in head:
            raise HeadError("it is an error with arrays" if isinstance(head, dict) else "it has no head")
        created, ttl = _times(head)
        content = records.unpack(head.get("records"), {}, folded=True)
        stated = _stated_weight(self.slots, content, self._key)
        if stated != weight:
            raise HeadError(f"it is offered with the weight {weight:g}, and its {self._key} is {stated:g}")
        return ReplyContent(created, ttl, content)


def read(head: Any, tensors: Mapping[str, Values]) -> ReplyContent:
    """Return the content of a reply that was not folded, from its head and tensors. Raises HeadError."""
    if not isinstance(head, dict):
        raise HeadError("it has no head")
    created, ttl = _times(head)
    if "error" in head:
        return ReplyContent(created, ttl, _error(head["error"], tensors))
    content = records.unpack(head.get("records"), tensors)
    for record in content.values():
        for name, array in record.items() if isinstance(record, ArrayRecord) else ():
            _check(name, array)
    return ReplyContent(created, ttl, content)


def _times(head: Table) -> tuple[float, float]:
    """Return when a reply was created, and its time to live, in seconds. Raises HeadError unless that is above 0."""
    try:
        created, ttl = seconds_of(head.get("created")), seconds_of(head.get("ttl"))
    except (TypeError, ValueError, OverflowError) as error:
        raise HeadError(str(error)) from error
    if ttl <= 0:
        raise HeadError(f"its time to live is {ttl:g} s")
    return created, ttl


def _error(fields: Any, tensors: Mapping[str, Values]) -> Error:
    if tensors:
        raise HeadError("it is an error with arrays")
    if not (isinstance(fields, list) and len(fields) == 2):
        raise HeadError("its error is not a code and a reason")
    code, reason = fields
    if type(code) is not int or abs(code) >= 2**63 or not (reason is None or isinstance(reason, str)):
        raise HeadError("its error is not a code and a reason")
    return Error(code, None if reason is None else reason[: 2 * LONGEST_REASON])


def _stated_weight(slots: Slots, content: RecordDict, key: str) -> float:
    """Return the weight in a folded reply's metrics. Raises HeadError if its arrays do not fit the mean."""
    record, metrics = only(content, ArrayRecord), only(content, MetricRecord)
    if record is None or record.keys() != slots.shapes.keys():
        raise HeadError("its arrays have other names than those of the mean")
    for name, (dtype, shape) in slots.shapes.items():
        array = record[name]
        known = array.dtype in ARRAY_TYPES
        if not known or averaged(np.dtype(array.dtype)) != dtype or tuple(array.shape) != shape:
            raise HeadError(f"its array {name!r} is not as in the mean, {dtype.name} {list(shape)}")
    weight: Any = None if metrics is None else metrics.get(key)
    if type(weight) not in (int, float) or not WEIGHTS[0] <= weight <= WEIGHTS[1]:
        raise HeadError(f"it states no {key} that can be a weight")
    return float(weight)


def _check(name: str, array: Array) -> None:
    """Raise HeadError for an array that cannot be read, or whose type or shape is not the one in the head."""
    if isinstance(array, View) and array.values is not None:
        own = str(array.values.dtype), array.values.shape
        if (array.dtype, tuple(array.shape)) not in (own, ("", ())):  # legacy records have neither type nor shape
            raise HeadError(f"its array {name!r} is said to be {array.dtype} {list(array.shape)}, and is not")
    elif array.stype == NUMPY and (why := why_unreadable(array.data)):
        raise HeadError(f"its array {name!r} cannot be read: {why}")
