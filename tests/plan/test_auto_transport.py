"""Which transport ``thalweg run`` chooses if the plan names none, or ``auto``."""

from __future__ import annotations

import pytest

from thalweg.plan import Plan
from thalweg.plan.auto_transport import with_transport
from thalweg.transports import registry


def plan(**overrides: object) -> Plan:
    return Plan.of({}).merge({"transport.url": "auto", **{key.replace("__", "."): v for key, v in overrides.items()}})


def test_a_transport_that_is_named_stays() -> None:
    named = Plan.of({"transport": {"url": "tcp"}})
    assert with_transport(named) == (named, None)


def test_without_one_it_is_chosen_as_with_auto() -> None:
    assert with_transport(Plan.of({})) == with_transport(plan())
    assert with_transport(Plan.of({"network": {"profile": "wan"}})) == with_transport(plan(network="wan"))
    # A whole plan, as a bench or a record has it, names its transport.
    whole = Plan.loads(Plan.of({}).to_toml())
    assert with_transport(whole) == (whole, None)


def test_within_the_machine_it_is_shared_memory() -> None:
    available = next(entry.available for entry in registry.transports() if entry.name == "shm")
    chosen, reason = with_transport(plan())
    assert (chosen.scheme, reason is None) == ("shm" if available else "tcp", False)
    assert with_transport(plan(network="none"))[0].scheme == chosen.scheme
    assert with_transport(plan(job__graph="ring"))[0].scheme == chosen.scheme


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"network": "wan"}, "a network is emulated"),
        ({"layers__throttle": "10mbit"}, "throttled"),
        ({"layers__fault__loss": 0.1}, "faults"),
        ({"transport__congestion": "reno"}, "transport.congestion"),
        ({"transport__client_congestion": ["reno"]}, "transport.client_congestion"),
        ({"transport__streams": 2}, "transport.streams"),
        ({"transport__send_buffer": 1000}, "transport.send_buffer"),
        ({"transport__receive_buffer": 1000}, "transport.receive_buffer"),
        ({"security__tls": "on"}, "security.tls"),
        ({"security__pki": "pki"}, "security.pki"),
        ({"transport__options": {"nosuch": True}}, "transport.options"),
        ({"aggregation__shape": "tree", "nodes__count": 2, "nodes__engine": "ray"}, "Ray"),
    ],
)
def test_needs_of_a_network_make_auto_choose_tcp(asked: dict[str, object], words: str) -> None:
    chosen, reason = with_transport(plan(**asked))
    assert chosen.scheme == "tcp"
    assert words in (reason or "")
