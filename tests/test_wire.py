"""Messages of the core have exactly the keys of the classes that hold them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

import pytest

from thalweg import _core, wire
from thalweg.lab.status import HostCounters, LinkStatus, Percentiles, Relay, Status
from thalweg.lab.values import Host
from thalweg.machine import Build
from thalweg.network.shape import Shape
from thalweg.outcome.core import NodePart
from thalweg.record.facts import Facts
from thalweg.record.rows import ROWS, TABLES
from thalweg.transports.registry import Capabilities, Kind, Setting, Transport

SPEC = {
    "seed": 0,
    "hosts": [{"name": "server"}, {"name": "client-1"}],
    "switches": [],
    "links": [{"name": "client-1", "a": "client-1", "b": "server", "ab": {}, "ba": {}}],
    "changes": [],
}


def names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}


def test_the_build_has_the_keys_of_its_class() -> None:
    assert set(json.loads(_core.build_info())) == names(Build)


def test_transports_have_the_keys_of_their_classes() -> None:
    printed = json.loads(_core.transports())
    assert {key for one in printed for key in one} == names(Transport)
    assert all(set(one["capabilities"]) == names(Capabilities) for one in printed)
    settings = [setting for one in printed for setting in one["settings"]]
    assert all(set(setting) == names(Setting) for setting in settings)
    assert {key for setting in settings for key in setting["kind"]} == names(Kind)


def test_transports_are_written_as_the_core_says_them() -> None:
    transports = wire.decode(list[Transport], _core.transports())
    assert json.loads(wire.encode(transports)) == json.loads(_core.transports())


@pytest.fixture
def lab() -> Iterator[_core.Lab]:
    try:
        made = _core.Lab(wire.encode(SPEC))
    except _core.CoreError as error:
        pytest.skip(f"no lab can be made here: {error}")
    yield made
    made.close()


def test_a_lab_has_the_keys_of_its_classes(lab: _core.Lab) -> None:
    lab.start()
    hosts = json.loads(lab.hosts())
    assert all(set(host) == names(Host) - {"cookie"} for host in hosts.values())
    status = json.loads(lab.status())
    assert set(status) == names(Status)
    assert set(status["relay"]) == names(Relay)
    assert all(set(one) == names(HostCounters) for one in status["hosts"].values())
    for link in status["links"]:
        assert set(link) == names(LinkStatus)
        assert set(link["shape"]) == names(Shape)
        assert set(link["delay"]) == set(link["lateness"]) == names(Percentiles)
    assert json.loads(wire.encode(wire.decode(Status, lab.status())))["hosts"] == status["hosts"]


@dataclass(frozen=True)
class Inner:
    """A part of a message."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Outer:
    """A message."""

    number: float
    inner: Inner | None = None


def test_what_is_encoded_is_decoded() -> None:
    for message in (Outer(1.5), Outer(2.0, Inner(("a", "b")))):
        assert wire.decode(Outer, wire.encode(message)) == message
    assert wire.decode(Outer, '{"number": 1, "later": true}') == Outer(1.0), "newer keys are ignored"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"number": "x"}', '{"number": 1, "inner": {"words": 3}}'])
def test_another_message_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="validation error"):
        wire.decode(Outer, text)


def test_a_value_that_is_no_message_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot hold a set"):
        wire.encode({"names": {"a"}})


def test_the_values_of_a_message_are_those_of_its_json() -> None:
    message = {"one": Outer(1.5), "all": (Outer(2.0, Inner(("a", "b"))), None, True)}
    assert wire.values_of(message) == json.loads(wire.encode(message))


def test_fields_without_a_value_are_left_out_if_none_is_their_default() -> None:
    assert wire.sparse(Percentiles(p50=1.0)) == {"p50": 1.0}
    assert wire.sparse(NodePart("node-1", 2, 0, None)) == {"node": "node-1", "clients": 2, "counted": 0, "reason": None}


def test_a_part_that_is_no_table_is_empty() -> None:
    table = {"a": {"b": 1}, "c": [1]}
    assert [wire.part(table, key) for key in "acd"] == [{"b": 1}, {}, {}]


def test_the_columns_of_a_table_are_the_fields_of_its_row() -> None:
    for name, row in ROWS.items():
        assert [column.name for column in TABLES[name]] == [field.name for field in fields(row)]
        assert all(column.type and column.meaning for column in TABLES[name])


@pytest.mark.parametrize("value", [None, 3, "text", [1], {"other": 1}])
def test_facts_of_another_type_are_unknown(value: object) -> None:
    facts = Facts({"key": value} if not isinstance(value, Mapping) else value)
    assert facts.part("key") == Facts()
    assert facts.text("key") == (value if isinstance(value, str) else None)
    assert facts.whole("key") == facts.number("key") == (value if isinstance(value, int) else None)
    assert facts.items("key") == (value if isinstance(value, list) else [])
    assert facts.parts("key") == []


def test_facts_are_read_with_their_types() -> None:
    facts = Facts.of({"a": {"b": [{"c": 1}, 2]}, "yes": True, "share": 0.5})
    assert [one.whole("c") for one in facts.part("a").parts("b")] == [1]
    assert facts.is_true("yes")
    assert facts.whole("yes") is None, "true is no number"
    assert facts.number("share") == 0.5
    assert "a" in facts
    assert not Facts.of([1])
