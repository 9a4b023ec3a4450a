"""The core's messages have the fields of Python's classes, with the same types.

Rust's tests write the examples in tests/border, and fail while an example differs from what the core's structs become.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from thalweg import _core, trees, wire
from thalweg.outcome import core
from thalweg.plan import Plan
from thalweg.trees import answers, counters

EXAMPLES = Path(__file__).with_name("border")
KINDS = [
    ("outcome", answers.Outcome),
    ("outcome", core.Outcome),
    ("workers", answers.Workers),
    ("workers", counters.Workers),
    ("iteration", core.IterationReport),
]
# Only the outcome of a round that ends with sums has it, and only a node's answer keeps it.
OF_SUMS = {"failure"}
# Unknown in rounds of a Flower app, but never in the core's.
KNOWN_TO_THE_CORE = {"start", "samples"}


def examples(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((EXAMPLES / f"{name}.json").read_text())
    return found


def faults(kind: Any, value: object, where: str, *, unknown: bool) -> Iterator[str]:
    """Yield each place at which a value is not of the type ``kind``."""
    if get_origin(kind) in (Union, UnionType):
        yield from min((list(faults(one, value, where, unknown=unknown)) for one in get_args(kind)), key=len)
    elif is_dataclass(kind):
        table = value if isinstance(value, dict) else {}
        yield from field_faults(kind, table, where, unknown=unknown)
    elif get_origin(kind) is Literal:
        yield from [] if value in get_args(kind) else [f"{where} is {value!r}"]
    elif get_origin(kind) is Mapping:
        table = value if isinstance(value, dict) else {where: value}
        yield from (fault for one in table.values() for fault in faults(get_args(kind)[1], one, where, unknown=unknown))
    elif get_args(kind):
        yield from list_faults(get_args(kind)[0], value, where, unknown=unknown)
    elif kind is not object and type(value) is not kind:
        yield f"{where} is {type(value).__name__}, not {kind.__name__}"


def list_faults(kind: Any, value: object, where: str, *, unknown: bool) -> Iterator[str]:
    """Yield each element that is not of the type ``kind``. A filled example has an element in each list."""
    if not isinstance(value, list) or not (value or unknown):
        yield f"{where} is no list with an element"
        return
    for one in value:
        yield from faults(kind, one, f"{where}[]", unknown=unknown)


def field_faults(kind: Any, table: Mapping[str, object], where: str, *, unknown: bool) -> Iterator[str]:
    """Yield the fields that only one of a class and a table has, and those of another type."""
    hints, own = get_type_hints(kind), {one.name: one for one in fields(kind)}
    extra = table.keys() - own.keys() - (OF_SUMS if kind is core.Outcome else set())
    yield from (f"{where} has no field {name}" for name in extra)
    for name, field in own.items():
        at = f"{where}.{name}"
        if name in table:
            yield from faults(hints[name], table[name], at, unknown=unknown)
            may_be_none = NoneType in get_args(hints[name])
            if unknown and may_be_none and table[name] is not None and name not in KNOWN_TO_THE_CORE:
                yield f"{at} is never null"
        elif not is_added(kind, field, unknown=unknown):
            yield f"{at} is not sent"


def is_added(kind: Any, field: Field[Any], *, unknown: bool) -> bool:
    """Whether the package adds a field, or the core leaves it out while it is unknown."""
    added = {"Participant": {"usage", "evaluation"}, "WorkSpan": {"node"}}.get(kind.__name__, set())
    return field.name in added or (unknown and field.default is None)


@pytest.mark.parametrize("form", ["filled", "unknown"])
@pytest.mark.parametrize(("name", "kind"), KINDS, ids=lambda one: one if isinstance(one, str) else one.__module__)
def test_a_message_has_the_fields_of_its_class(name: str, kind: type, form: str) -> None:
    example = examples(name)[form]
    if kind is core.Outcome:  # one of the three kinds that a fold may be of
        assert list(faults(core.Fold, example["fold"], "fold", unknown=form == "unknown")) == []
    assert list(faults(kind, example, name, unknown=form == "unknown")) == []
    wire.decode(kind, json.dumps(example))


def test_what_the_control_plane_says_has_the_fields_of_its_classes() -> None:
    plan = Plan.of({"job": {"clients": 6}, "aggregation": {"shape": "tree"}, "nodes": {"count": 2, "capacity": 4}})
    scenario = wire.encode(trees.scenario(plan, update_bytes=1 << 20))
    decision = json.loads(_core.tree_plan(scenario))
    assert decision["plan"].pop("lost") == []
    assert list(faults(trees.Decision, decision, "decision", unknown=False)) == ["decision.plan.lost is not sent"]
    rounds = json.loads(_core.tree_simulate(scenario))
    assert rounds
    assert [fault for one in rounds for fault in faults(trees.SimulatedRound, one, "round", unknown=False)] == []


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"tensor": "a", "missing": 1}, "loss.share is not sent"),
        ({"tensor": "a", "missing": 1, "share": 0.5, "more": 1}, "loss has no field more"),
        ({"tensor": "a", "missing": 1.5, "share": 0.5}, "loss.missing is float, not int"),
        ({"tensor": None, "missing": 1, "share": 0.5}, "loss.tensor is NoneType, not str"),
    ],
)
def test_what_differs_is_found(value: Mapping[str, object], fault: str) -> None:
    assert list(faults(core.Loss, value, "loss", unknown=False)) == [fault]


def test_a_field_that_is_never_null_is_found() -> None:
    found = faults(counters.Percentiles, {"p50": 1.5, "p99": None}, "times", unknown=True)
    assert list(found) == ["times.p50 is never null"]
