"""Networks in a line of text, alone and merged into a plan's."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.errors import PlanError
from thalweg.network import inline, spec
from thalweg.network.shape import Burst, Shape
from thalweg.plan import Plan
from thalweg.sections.network import NetworkSection


def shapes(text: str, **table: Any) -> tuple[Shape, Shape]:
    """Return the shapes of a client's link, up and down."""
    network = NetworkSection.model_validate(inline.over(table, text))
    link = spec.build(["client-1"], network).links[0]
    return link.ab, link.ba


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("rate=100mbit,rtt=40ms,loss=1%", Shape(rate=100_000_000, delay=0.02, loss=0.01)),
        ("wan,loss=2%", Shape(rate=10**9, delay=0.02, loss=0.02)),
        (" wan , loss = 0.02 ", Shape(rate=10**9, delay=0.02, loss=0.02)),
        ("wan,delay=5ms", Shape(rate=10**9, delay=0.005)),
        ("wan,rate=unlimited", Shape(delay=0.02)),
        ("dpsgd,burst=1%/30%", Shape(delay=0.2, jitter=0.05, burst=Burst(0.01, 0.3))),
        ("burst=1%/30%/50%/0.1%", Shape(burst=Burst(0.01, 0.3, 0.5, 0.001))),
        ("rate=5mbit,queue=256KiB", Shape(rate=5_000_000, queue_bytes=262_144)),
        ("wifi,queue=100 packets", Shape(rate=60_000_000, queue_packets=100)),
        ("wifi,down=true", Shape(rate=60_000_000, down=True)),
        ("delay=10ms,jitter=20ms,clamp=true,keep_order=true", Shape(delay=0.01, jitter=0.02, keep_order=True)),
        (
            "delay=0.01,reorder=25%,reorder_correlation=50%,duplicate=1%",
            Shape(delay=0.01, reorder=0.25, reorder_correlation=0.5, duplicate=0.01),
        ),
    ],
)
def test_text_is_a_link_of_both_directions(text: str, shape: Shape) -> None:
    assert shapes(text) == (shape, shape)


def test_a_direction_has_keys_of_its_own() -> None:
    assert shapes("wan,up.rate=5mbit,down.loss=1%") == (
        Shape(rate=5_000_000, delay=0.02),
        Shape(rate=10**9, delay=0.02, loss=0.01),
    )


def test_a_range_is_drawn_within_it() -> None:
    up, down = shapes("rate=0.6gbit..0.8gbit,rtt=20ms..60ms")
    assert up == down
    assert up.rate is not None
    assert 6e8 <= up.rate <= 8e8
    assert 0.01 <= up.delay <= 0.03


def test_a_profile_replaces_the_plans_keys_and_nothing_else() -> None:
    table = {
        "profile": "3g",
        "loss": 0.1,
        "up": {"rate": 1},
        "topology": "mesh",
        "seed": 3,
        "clients": {"client-1": {"loss": 0.5}},
    }
    merged = inline.over(table, "wan,jitter=1ms")
    assert merged == {
        "profile": "wan",
        "jitter": "1ms",
        "topology": "mesh",
        "seed": 3,
        "clients": {"client-1": {"loss": 0.5}},
    }


def test_keys_replace_their_like_and_what_they_exclude() -> None:
    table = {"profile": "3g", "rtt": 0.1, "loss": 0.1, "up": {"rate": 9, "loss": 0.2}, "down": {"burst": "1%/2%"}}
    assert inline.over(table, "delay=5ms,loss=3%") == {
        "profile": "3g",
        "delay": "5ms",
        "loss": "3%",
        "up": {"rate": 9},
        "down": {},
    }
    assert inline.over({"up": {"rate": 9}}, "up.loss=1%") == {"up": {"rate": 9, "loss": "1%"}}


def test_none_turns_a_network_off() -> None:
    plan = Plan.loads("[network]\nprofile = 'wan'").merge({"network": "none"})
    assert plan.network is not None
    assert (plan.network.emulator, plan.network.profile) == ("none", "wan")


def test_the_command_line_goes_over_the_plan() -> None:
    plan = Plan.loads("[network]\nprofile = 'wifi'\nloss = '1%'\n[network.tcp]\nsack = false")
    merged = plan.merge({"network": "rate=10mbit", "network.topology": "bottleneck", "network.emulator": None})
    assert merged.network is not None
    assert (merged.network.profile, merged.network.rate, merged.network.loss) == ("wifi", 10_000_000, 0.01)
    assert (merged.network.topology, merged.network.tcp.sack) == ("bottleneck", False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is neither a key with a value nor the profile in front"),
        ("loss=1%,wan", "'wan' is neither"),
        ("loss", "'loss' is neither"),
        ("wan,", "'' is neither"),
        ("los=1%", "unknown key 'los'. Did you mean 'loss'?"),
        ("side.loss=1%", "'side' is no direction"),
        ("up.rtt=1ms", "unknown key 'rtt'"),
        ("loss=1%,loss=2%", "gives loss twice"),
        ("loss=-1%", "loss is '-1%', not a fraction"),
        ("loss=1.5", "loss is '1.5', not from 0 to 1"),
        ("loss=101%", "not from 0 to 1"),
        ("loss=nan", "not a fraction"),
        ("loss_correlation=1", "not from 0 to 0.99"),
        ("rate=0bit", "not from 1 to"),
        ("rate=100", "not a rate with its unit (100 what?), as 100mbit or 100bit"),
        ("rate=-5mbit", "not bits a second"),
        ("rate=inf", "not bits a second"),
        ("rate=2mbit..1mbit", "or two of them as [low, high]"),
        ("rate=1mbit..2mbit..3mbit", "or two of them as [low, high]"),
        ("rtt=2 parsecs", "not seconds, or text with a unit"),
        ("delay=2h", "not from 0 to 3600"),
        ("queue=0", "at least 1500"),
        ("queue=0 packets", "not at least 1 packet"),
        ("queue=1B", "at least 1500"),
        ("down=maybe", "not a table"),
        ("clamp=maybe", "clamp is 'maybe', not true or false"),
        ("burst=1%", "burst is '1%', not a table of enter and leave"),
        ("burst=1%/x", "leave in [burst] is 'x', not a fraction"),
    ],
)
def test_what_is_no_network_is_explained(text: str, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.of({}).merge({"network": text})
    assert words in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loss=1%,burst=1%/30%", "both loss and burst"),
        ("rtt=1ms,delay=1ms", "both delay and rtt"),
        ("delay=1ms,jitter=2ms", "the jitter of 2.0 ms exceeds the delay of 1.0 ms"),
        ("dpsgd,rtt=10ms", "say clamp = true"),
        ("reorder=10%", "Give delay or rtt"),
        ("burst=1%/0", "never leaves a burst"),
        ("wnn", "Did you mean 'wan'?"),
    ],
)
def test_what_does_not_go_together_is_explained(text: str, words: str) -> None:
    table = inline.over({}, text)
    with pytest.raises(PlanError) as caught:
        spec.build(["client-1"], NetworkSection.model_validate(table))
    assert words in str(caught.value)


def test_a_change_has_no_direction_inside() -> None:
    assert inline.parse_shape("wifi,loss=5%") == {"profile": "wifi", "loss": "5%"}
    assert inline.parse_shape("down=true") == {"down": True}
    with pytest.raises(PlanError, match="keys of up alone"):
        inline.parse_shape("up.loss=5%")


_times = st.integers(0, 3_600_000).map(lambda number: f"{number}ms")
_shares = st.integers(0, 100).map(lambda number: f"{number}%")
_keys = st.fixed_dictionaries(
    {},
    optional={
        "rate": st.integers(1, 10**15 - 1).map(lambda number: f"{number}bit"),
        "delay": _times,
        "loss": _shares,
        "duplicate": _shares,
        "queue": st.integers(1500, 10**9).map(str) | st.integers(1, 10**6).map(lambda n: f"{n} packets"),
        "down": st.sampled_from(["true", "false"]),
    },
)


@given(_keys, _keys)
def test_text_over_text_is_both_with_the_later_first(first: dict[str, str], second: dict[str, str]) -> None:
    if not first or not second:
        return

    def line(keys: dict[str, str]) -> str:
        return ",".join(f"{key}={value}" for key, value in keys.items())

    assert shapes(line(second), **inline.parse(line(first))) == shapes(line({**first, **second}))


@given(st.text(max_size=40))
def test_any_text_is_a_network_or_a_plan_error(text: str) -> None:
    # Any text gives either a network or a PlanError.
    with suppress(PlanError):
        assert Plan.of({}).merge({"network": text}).network is not None


def test_all_wrong_keys_are_named_at_once() -> None:
    with pytest.raises(PlanError) as caught:
        inline.parse("rate=100,los=1%,up.rtt=4ms")
    for wrong in ("3 keys are wrong", "rate is '100'", "'los' (did you mean 'loss'?)", "unknown key 'rtt' in [up]"):
        assert wrong in caught.value.cause
