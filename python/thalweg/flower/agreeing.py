"""Finds replies whose form differs from the others. One such reply makes Flower's mean fail, which ends the run."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from thalweg.flower.arrays import Folded, values_of

_Arrays: TypeAlias = frozenset[tuple[str, str, tuple[int, ...] | None]]


@dataclass(frozen=True)
class Form:
    """What all replies must have alike: names and shapes of arrays, names of metrics, and whether there is a weight."""

    arrays: _Arrays
    metrics: frozenset[tuple[str, str, int | None]]
    weighs: bool

    @classmethod
    def of(cls, content: RecordDict, key: str | None) -> Form:
        """Return the form of a reply's records. The metric ``key`` is its weight; None: no weight is needed."""
        records = [(name, record) for name, record in content.items() if isinstance(record, MetricRecord)]
        metrics = frozenset(
            (name, metric, len(value) if isinstance(value, list) else None)
            for name, record in records
            for metric, value in record.items()
        )
        weighs = key is None or (len(records) == 1 and _is_weight(records[0][1].get(key)))
        return cls(_arrays(content), metrics, weighs)


def odd(
    contents: Sequence[RecordDict], request: RecordDict, key: str | None, *, metrics: bool = True
) -> dict[int, str]:
    """Return the replies whose form differs from the accepted one: by index, with the reason.

    The accepted form is chosen by three criteria, in this order: its arrays are those of the message ``request``; it
    has a weight; most replies have it. If no reply has the arrays of that message, shapes are not compared: the arrays
    of gradient-boosted trees, for example, have any length. Without ``metrics`` the metrics may differ.
    """
    forms = [Form.of(content, key) for content in contents]
    if not metrics:
        forms = [replace(form, metrics=frozenset()) for form in forms]
    sent = _arrays(request)
    if not any(form.arrays == sent for form in forms):
        forms = [replace(form, arrays=_named(form.arrays)) for form in forms]
    if len(set(forms)) < 2:
        return {}
    best = max(forms, key=lambda form: (form.arrays == sent, form.weighs, forms.count(form)))
    return {at: _difference(form, best, key) for at, form in enumerate(forms) if form != best}


def flower_takes(strategy: Strategy, *, trains: bool) -> bool:
    """Return whether Flower's own code aggregates a strategy's replies, or code of this package that replaces it."""
    name = "aggregate_train" if trains else "aggregate_evaluate"
    method = inspect.getattr_static(type(strategy), name, None)
    package = str(getattr(method, "__module__", "")).partition(".")[0]
    return package in ("flwr", "thalweg") and name not in vars(strategy)


def _arrays(content: RecordDict) -> _Arrays:
    return frozenset(
        (key, name, _shape(array))
        for key, record in content.items()
        if isinstance(record, ArrayRecord)
        for name, array in record.items()
    )


def _shape(array: Array) -> tuple[int, ...] | None:
    if isinstance(array, Folded):
        return tuple(array.shape)
    values = values_of(array)
    return None if values is None else values.shape


def _named(arrays: _Arrays) -> _Arrays:
    return frozenset((key, name, None) for key, name, _ in arrays)


def _is_weight(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def _difference(form: Form, best: Form, key: str | None) -> str:
    if form.arrays != best.arrays:
        some = sorted(name for _, name, _ in form.arrays ^ best.arrays)
        return f"its arrays are not as those of other replies: {some[0]!r}"
    if form.weighs != best.weighs:
        return f"it has no {key} that can be a weight"
    some = sorted(name for _, name, _ in form.metrics ^ best.metrics)
    return f"its metrics are not as those of other replies: {some[0]!r}"
