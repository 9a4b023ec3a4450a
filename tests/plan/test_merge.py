"""Plans: the command line overrides the file, and the file overrides the defaults. Also writing and reading again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.errors import PlanError
from thalweg.plan import Plan
from thalweg.sections import toml


def test_the_command_line_overrides_the_file_and_the_file_the_defaults() -> None:
    plan = Plan.loads("[job]\nrounds = 7\nclients = 3").merge({"job.rounds": 2, "job.clients": None})
    assert (plan.job.rounds, plan.job.clients, plan.job.seed) == (2, 3, 0)


def test_merging_checks_combinations_again_and_names_the_source() -> None:
    plan = Plan.loads("[job]\nenough = 3")
    with pytest.raises(PlanError, match="of 2 clients"):
        plan.merge({"job.clients": 2})
    with pytest.raises(PlanError, match="the command line: rounds in"):
        plan.merge({"job.rounds": 0})


def test_merging_a_payload_over_defaults_is_fine_but_not_over_given_data() -> None:
    assert Plan.of({}).merge({"model.name": "payload:1MiB"}).payload == 1 << 20
    with pytest.raises(PlanError, match=r"\[data\]"):
        Plan.loads("[data]\nname = 'digits'").merge({"model.name": "payload:1MiB"})


def test_options_of_the_transport_are_merged_one_by_one() -> None:
    plan = Plan.loads("[transport.options]\nqos = 1\nretain = true").merge({"transport.options.qos": 2})
    assert plan.transport.options == {"qos": 2, "retain": True}
    assert Plan.of({}).merge({"transport.options.mode": "unary"}).transport.options == {"mode": "unary"}


def test_deterministic_chooses_exact() -> None:
    plan = Plan.of({}).merge({"aggregation.deterministic": True})
    assert plan.precision == "exact"


def test_a_transport_name_is_short_for_loopback() -> None:
    assert Plan.of({}).merge({"transport.url": "memory"}).url == "memory://127.0.0.1:0"
    assert Plan.of({}).merge({"transport.url": "tcp://10.0.0.1:7"}).scheme == "tcp"


def test_what_matters_on_resume() -> None:
    plan = Plan.of({})
    free = {"job.rounds": 9, "transport.chunk": 4096, "record.folder": "x", "training.threads": 1, "network": "wan"}
    assert plan.differences(plan.merge(free)) == []
    changed = plan.merge({"training.batch": 10, "job.seed": 1})
    assert plan.differences(changed) == ["job.seed: 0, 1", "training.batch: 100, 10"]


def _optional(key: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={key: values})


def test_a_payload_keeps_its_computation() -> None:
    plan = Plan.of({"model": {"name": "payload:vgg5"}, "training": {"compute": "2s", "compute_load": "cpu"}})
    assert plan.payload == 2_330_856
    again = Plan.loads(plan.to_toml())
    assert again == plan
    assert (again.training.compute, again.training.compute_load) == (2.0, "cpu")


_words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
_sizes = st.integers(1, 2**63 - 1)
_seconds = st.floats(min_value=0, max_value=1e9, exclude_min=True)
_clients = st.dictionaries(_words, _words, min_size=1, max_size=5)
_tables = st.fixed_dictionaries(
    {},
    optional={
        "job": st.fixed_dictionaries(
            {}, optional={"rounds": st.integers(1, 2**32 - 1), "deadline": _seconds, "grace": _seconds, "seed": _sizes}
        ),
        "training": st.fixed_dictionaries(
            {}, optional={"learning_rate": _seconds, "momentum": st.floats(0, 1, exclude_max=True)}
        ),
        "transport": st.fixed_dictionaries(
            {},
            optional={
                "url": _words,
                "congestion": _words,
                "streams": st.integers(1, 16),
                "send_buffer": st.integers(1, 2**31 - 1),
            },
        ),
        "aggregation": st.fixed_dictionaries(
            {}, optional={"deterministic": st.booleans(), "partial": st.sampled_from(["keep", "discard"])}
        ),
        "layers": st.fixed_dictionaries(
            {}, optional={"throttle": st.integers(1, 10**15), "fault": _optional("loss", st.floats(0, 1))}
        ),
        "network": st.fixed_dictionaries(
            {},
            optional={
                "profile": st.sampled_from(["3g", "wan"]),
                "rate": st.integers(1, 10**15) | st.just([1, 5]) | st.just("unlimited"),
                "queue": st.sampled_from(["9 packets", "64KiB"]),
                "up": _optional("loss", st.floats(0, 1)),
                "down": st.booleans() | _optional("burst", st.just({"enter": 0.1, "leave": 0.2})),
                "clients": st.just({"client-2": {"profile": "4g"}}),
                "changes": st.lists(
                    st.fixed_dictionaries({"at": st.floats(0, 1e9), "down": st.booleans()}), min_size=1, max_size=3
                ),
            },
        ),
        "stress": st.fixed_dictionaries({"cpu": st.floats(1, 100)}, optional={"parties": st.just(["client-1"])}),
        "hosts": st.fixed_dictionaries({}, optional={"server": _words, "clients": _clients}),
        "record": st.fixed_dictionaries({}, optional={"folder": _words, "checkpoint_every": st.integers(0, 100)}),
    },
)


@given(_tables)
def test_a_plan_written_loads_to_an_equal_plan(table: dict[str, Any]) -> None:
    if "network" in table:
        table = {key: value for key, value in table.items() if key != "hosts"}
    plan = Plan.of(table)
    assert Plan.loads(plan.to_toml()) == plan
    assert Plan.of(plan.given()) == plan


def test_a_payload_plan_written_loads_to_an_equal_plan() -> None:
    plan = Plan.of({"model": {"name": "payload:8MiB"}})
    assert "[data]" not in plan.to_toml()
    assert Plan.loads(plan.to_toml()) == plan


_scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | _words
_values = st.recursive(
    _scalars | st.lists(_scalars, max_size=3),
    lambda inner: st.dictionaries(_words, inner, max_size=3) | st.lists(inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(_words, _values, max_size=4))
def test_the_writer_writes_what_the_reader_reads(table: dict[str, Any]) -> None:
    assert toml.loads(toml.dumps(table), "it") == table


def test_the_writer_refuses_what_has_no_place() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        toml.dumps({"a": None})
