"""The core's specification of a network: its JSON, its dependence on the seed, and TCP's settings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.errors import PlanError
from thalweg.network import inline, spec
from thalweg.network.spec import LARGEST_BUFFER, SMALLEST_BUFFER, Spec
from thalweg.plan import Plan
from thalweg.plan.emulated import network_of
from thalweg.sections.network import NetworkSection

SHAPE_KEYS = {
    "rate", "delay", "jitter", "delay_correlation", "keep_order", "loss", "loss_correlation", "burst", "reorder",
    "reorder_correlation", "duplicate", "duplicate_correlation", "queue_bytes", "queue_packets", "down",
}  # fmt: skip


def build(text: str, clients: int = 2, seed: int = 0, **more: Any) -> Spec:
    network = NetworkSection.model_validate(inline.over(more, text))
    return spec.build([f"client-{number}" for number in range(1, clients + 1)], network, seed)


def sysctls(made: Spec) -> dict[str, str]:
    assert all(host.sysctls == made.hosts[0].sysctls for host in made.hosts)
    return dict(made.hosts[0].sysctls)


def test_the_table_is_the_cores() -> None:
    made = build("burst=1%/30%", changes=[{"at": 5, "down": True}])
    table = json.loads(made.text())
    assert table == made.table()
    assert set(table) == {"seed", "mtu", "hosts", "switches", "links", "changes"}
    assert table["mtu"] == 1500
    assert [set(host) for host in table["hosts"]] == [{"name", "sysctls"}] * 3
    assert [set(link) for link in table["links"]] == [{"name", "a", "b", "ab", "ba"}] * 2
    assert {frozenset(change) for change in table["changes"]} == {frozenset({"at", "link", "direction", "shape"})}
    shapes = [link[way] for link in table["links"] for way in ("ab", "ba")]
    assert all(set(shape) == SHAPE_KEYS for shape in [*shapes, *(change["shape"] for change in table["changes"])])
    assert shapes[0]["burst"] == {"enter": 0.01, "leave": 0.3, "loss_bad": 1.0, "loss_good": 0.0}


def test_a_plan_names_its_clients_and_its_seed() -> None:
    plan = Plan.loads("[job]\nclients = 3\nseed = 5\n[network]\nprofile = 'unifl-wan'\nseed = 7")
    made = network_of(plan)
    assert made.clients == ["client-1", "client-2", "client-3"]
    assert (made.profile, made.topology) == ("unifl-wan", "star")
    assert plan.network is not None
    assert made == spec.build(made.clients, plan.network, 5)


def test_a_plan_without_a_network_has_none() -> None:
    with pytest.raises(PlanError, match="has no"):
        network_of(Plan.of({}))


def test_the_same_seed_is_the_same_network_and_another_another() -> None:
    assert build("unifl-wan") == build("unifl-wan")
    networks = [NetworkSection.model_validate({"profile": "unifl-wan", "seed": seed}) for seed in (0, 1)]
    drawn = [spec.build(["client-1"], network, seed) for network in networks for seed in (0, 1)]
    assert len({made.seed for made in drawn}) == len({made.links[0].ab.rate for made in drawn}) == 4


def test_a_draw_does_not_depend_on_the_other_clients() -> None:
    few, many = build("unifl-wan", clients=2), build("unifl-wan", clients=64)
    assert few.links == many.links[:2]
    shapes = [link.ab for link in many.links]
    assert len({shape.rate for shape in shapes}) == 64
    assert all(link.ab == link.ba for link in many.links), "a link is drawn, not each of its directions"
    rates = [shape.rate or 0 for shape in shapes]
    assert min(rates) >= 6e8
    assert max(rates) <= 8e8
    # The mean of 64 uniform draws lies within four standard errors of the middle.
    assert abs(sum(rates) / 64 - 7e8) < 4 * 2e8 / (12 * 64) ** 0.5
    assert all(0.02 <= shape.delay <= 0.06 for shape in shapes)


def test_directions_are_drawn_apart_where_the_plan_says_them_apart() -> None:
    made = build("up.rate=1mbit..9mbit,down.rate=1mbit..9mbit")
    assert made.links[0].ab.rate != made.links[0].ba.rate


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("3g", SMALLEST_BUFFER),
        # 1 Gbit/s times 40 ms are 5 MB.
        ("wan", 20_000_000),
        ("cross-silo", LARGEST_BUFFER),
        ("rtt=100ms", LARGEST_BUFFER),
        ("rate=100mbit,up.delay=100ms,down.delay=60ms,up.jitter=20ms", 9_000_000),
    ],
)
def test_buffers_hold_four_bandwidth_delay_products(text: str, bytes_: int) -> None:
    set_ = sysctls(build(text))
    assert set_["net.ipv4.tcp_wmem"] == f"4096 16384 {bytes_}"
    assert set_["net.ipv4.tcp_rmem"] == f"4096 131072 {bytes_}"


def test_buffers_hold_what_a_link_becomes() -> None:
    made = build("3g", changes=[{"at": 1, "profile": "wan"}])
    assert sysctls(made)["net.ipv4.tcp_wmem"].split()[-1] == "20000000"


def test_buffers_are_of_the_path_and_not_of_its_links() -> None:
    made = build("rate=1gbit,rtt=20ms", topology="bottleneck", bottleneck={"rate": "600mbit", "rtt": "20ms"})
    assert sysctls(made)["net.ipv4.tcp_wmem"].split()[-1] == str(4 * 600_000_000 // 8 * 4 // 100)


def test_tcp_is_as_the_plan_says() -> None:
    assert "net.ipv4.tcp_congestion_control" not in sysctls(build("wan"))
    tcp = {"congestion": "reno", "send_buffer": "8KiB", "receive_buffer": 5000, "timestamps": False, "sack": False}
    assert sysctls(build("wan", tcp=tcp)) == {
        "net.ipv4.tcp_congestion_control": "reno",
        "net.ipv4.tcp_wmem": "4096 8192 8192",
        "net.ipv4.tcp_rmem": "4096 5000 5000",
        "net.ipv4.tcp_timestamps": "0",
        "net.ipv4.tcp_sack": "0",
    }


_words = st.sampled_from(
    ["3g", "wan", "unifl-wan", "dpsgd,loss=10%", "rate=100mbit,rtt=40ms", "up.rate=1mbit..2mbit", "burst=1%/30%"]
)


@settings(max_examples=50)
@given(
    _words, st.sampled_from(["star", "bottleneck", "dumbbell", "mesh"]), st.integers(1, 6), st.integers(0, 2**63 - 1)
)
def test_any_network_is_one_the_core_can_take(text: str, topology: str, clients: int, seed: int) -> None:
    table: dict[str, Any] = {"topology": topology}
    if topology in ("bottleneck", "dumbbell"):
        table["bottleneck"] = {"rate": "50mbit"}
    made = build(text, clients, seed, **table)
    assert 0 <= made.seed < 2**63
    nodes = [host.name for host in made.hosts] + list(made.switches)
    assert len(set(nodes)) == len(nodes)
    assert len({link.name for link in made.links}) == len(made.links)
    for link in made.links:
        assert link.a != link.b
        assert {link.a, link.b} <= set(nodes)
        for shape in (link.ab, link.ba):
            assert shape.rate is None or shape.rate >= 1
            assert 0 <= shape.jitter <= shape.delay <= 3600
            assert not (shape.burst and (shape.loss or shape.loss_correlation))
    assert json.loads(made.text())["links"]


def test_packets_have_the_size_that_the_plan_says() -> None:
    made = build("up.rate=8mbit,down.rate=4mbit", limiter="device", mtu=9000)
    assert made.table()["mtu"] == 9000
    # A limiter lets at least two packets pass at once.
    assert {host.egress.burst_bytes for host in made.hosts if host.egress} == {18_000}


def test_a_limiter_on_the_device_is_the_hosts_and_not_the_links() -> None:
    made = build("up.rate=8mbit,up.queue=50000B,down.rate=4mbit,loss=1%", limiter="device", limiter_burst=1600)
    table: dict[str, Any] = made.table()
    limits = {host["name"]: host.get("egress") for host in table["hosts"]}
    own = {"rate": 8_000_000, "queue_bytes": 50_000, "burst_bytes": 1600}
    # The server has two links, so its device gets no limit from either of them.
    assert limits == {"server": None, "client-1": own, "client-2": own}
    assert [(link["ab"]["rate"], link["ab"]["queue_bytes"], link["ab"]["loss"]) for link in table["links"]] == [
        (None, None, 0.01)
    ] * 2
    assert [link["ba"]["rate"] for link in table["links"]] == [4_000_000] * 2
    # The links keep their shapes, because bounds and buffer sizes are computed from them.
    assert [link.ab.rate for link in made.links] == [8_000_000] * 2


def test_a_device_alone_on_its_link_is_limited_both_ways() -> None:
    table: dict[str, Any] = build("rate=80mbit", clients=1, limiter="device").table()
    own = {"rate": 80_000_000, "queue_bytes": 1_000_000, "burst_bytes": 10_000}
    assert [host["egress"] for host in table["hosts"]] == [own] * 2
    unlimited: dict[str, Any] = build("rtt=10ms", limiter="device").table()
    assert all("egress" not in host for host in unlimited["hosts"])


@pytest.mark.parametrize(
    ("text", "more", "words"),
    [
        ("rate=8mbit", {"changes": [{"at": 1, "rate": "4mbit"}]}, "changes of links"),
        ("rate=8mbit,queue=10 packets", {}, "queue of packets"),
        ("rate=8mbit,queue=2000B", {}, "burst of 3000"),
        ("rate=8mbit,queue=6GiB", {}, "at most"),
    ],
)
def test_limits_that_a_device_cannot_have_are_refused(text: str, more: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        build(text, limiter="device", **more)
