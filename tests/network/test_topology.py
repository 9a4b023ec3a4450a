"""Topologies: hosts, switches, links, and the shape of each link."""

from __future__ import annotations

from typing import Any

import pytest

from thalweg import graphs
from thalweg.errors import PlanError
from thalweg.network import spec
from thalweg.network.routes import routes
from thalweg.network.shape import Shape
from thalweg.network.spec import Spec
from thalweg.plan import Plan
from thalweg.sections.network import NetworkSection

MBIT = 1_000_000
THREE = ["client-1", "client-2", "client-3"]


def network(names: list[str] | None = None, **table: Any) -> Spec:
    return spec.build(THREE if names is None else names, NetworkSection.model_validate(table))


def ends(made: Spec) -> dict[str, tuple[str, str]]:
    return {link.name: (link.a, link.b) for link in made.links}


def rates(made: Spec) -> dict[str, tuple[int | None, int | None]]:
    return {link.name: (link.ab.rate, link.ba.rate) for link in made.links}


def test_a_star_links_each_client_with_the_server() -> None:
    made = network(profile="wifi")
    assert [host.name for host in made.hosts] == ["server", *THREE]
    assert made.switches == ()
    assert ends(made) == {name: (name, "server") for name in THREE}
    assert rates(made) == dict.fromkeys(THREE, (60 * MBIT, 60 * MBIT))


def test_a_broker_has_a_host_beside_the_server() -> None:
    made = network(profile="wifi", broker={"rate": "100mbit", "up": {"delay": "5ms"}})
    assert [host.name for host in made.hosts] == ["server", *THREE, "broker"]
    assert (made.clients, made.broker, made.switches) == (THREE, "broker", ("switch",))
    hub = {name: (name, "switch") for name in (*THREE, "broker", "server")}
    assert ends(made) == hub
    assert rates(made) == {
        **dict.fromkeys(THREE, (60 * MBIT, 60 * MBIT)),
        "broker": (100 * MBIT, 100 * MBIT),
        "server": (None, None),
    }
    assert {link.name: link.ab.delay for link in made.links}["broker"] == 0.005


@pytest.mark.parametrize(
    ("topology", "at", "links"),
    [("bottleneck", "switch", 5), ("dumbbell", "right", 6), ("mesh", "switch", 8)],
)
def test_where_a_brokers_host_is(topology: str, at: str, links: int) -> None:
    made = network(topology=topology, rate="20mbit", broker={})
    assert (ends(made)["broker"], len(made.links)) == (("broker", at), links)
    assert rates(made)["broker"] == (None, None)


def test_a_graphs_broker_is_where_its_links_say() -> None:
    pairs = [*((name, "hub") for name in (*THREE, "server")), ("broker", "hub")]
    links = [{"a": a, "b": b} for a, b in pairs]
    made = network(topology="graph", switches=["hub"], links=links, broker={})
    assert ends(made)["broker_hub"] == ("broker", "hub")
    with pytest.raises(PlanError, match="the links that name it"):
        network(topology="graph", switches=["hub"], links=links, broker={"rate": "1mbit"})
    with pytest.raises(PlanError, match="no host or switch 'broker'"):
        network(topology="graph", switches=["hub"], links=links)


def test_no_client_takes_the_brokers_name() -> None:
    with pytest.raises(PlanError, match="the name 'broker'"):
        network(["broker"], broker={})
    assert network(["broker"]).clients == ["broker"]


def test_a_bottleneck_is_shared_and_has_one_clients_rate() -> None:
    made = network(profile="wan", topology="bottleneck")
    assert made.switches == ("switch",)
    assert ends(made) == {**{name: (name, "switch") for name in THREE}, "bottleneck": ("switch", "server")}
    assert made.links[-1].ab == made.links[-1].ba == Shape(rate=1000 * MBIT)


def test_a_bottleneck_has_keys_of_its_own() -> None:
    own = {"queue": "64KiB", "up": {"rate": "10mbit"}}
    made = network(rate="20mbit", topology="bottleneck", bottleneck=own)
    assert made.links[-1].ab == Shape(rate=10 * MBIT, queue_bytes=65_536)
    assert made.links[-1].ba == Shape(rate=20 * MBIT, queue_bytes=65_536)
    made = network(topology="bottleneck", bottleneck={"profile": "4g"})
    assert rates(made) == {**dict.fromkeys(THREE, (None, None)), "bottleneck": (20 * MBIT, 20 * MBIT)}


def test_a_bottleneck_without_a_rate_is_none() -> None:
    with pytest.raises(PlanError, match="has no rate"):
        network(topology="bottleneck", rtt="10ms")
    made = network(topology="bottleneck", rtt="10ms", bottleneck={"rate": "unlimited", "loss": 0.1})
    assert made.links[-1].ab == Shape(loss=0.1)


def test_a_dumbbell_has_the_clients_left_and_the_server_right() -> None:
    made = network(rate="20mbit", topology="dumbbell", bottleneck={"rate": "30mbit", "rtt": "40ms"})
    assert made.switches == ("left", "right")
    assert ends(made) == {
        **{name: (name, "left") for name in THREE},
        "bottleneck": ("left", "right"),
        "server": ("right", "server"),
    }
    assert made.links[-2].ab == Shape(rate=30 * MBIT, delay=0.02)
    assert made.links[-1].ab == made.links[-1].ba == Shape()


def test_a_mesh_links_every_pair_once() -> None:
    made = network(rate="20mbit", topology="mesh", clients={"client-2": {"rate": "1mbit"}})
    assert ends(made) == {
        **{name: (name, "server") for name in THREE},
        "client-1_client-2": ("client-1", "client-2"),
        "client-1_client-3": ("client-1", "client-3"),
        "client-2_client-3": ("client-2", "client-3"),
    }
    assert rates(made)["client-2"] == (MBIT, MBIT), "its own link is that with the server"
    assert rates(made)["client-2_client-3"] == (20 * MBIT, 20 * MBIT)


def test_a_graph_is_what_is_said() -> None:
    links = [
        {"a": "client-1", "b": "hub"},
        {"a": "hub", "b": "server", "name": "trunk", "up": {"rate": "5mbit"}},
        {"a": "client-2", "b": "hub", "profile": "3g"},
        {"a": "client-3", "b": "client-1", "rate": "1mbit"},
    ]
    made = network(profile="wifi", topology="graph", switches=["hub"], links=links)
    assert made.switches == ("hub",)
    assert ends(made) == {
        "client-1_hub": ("client-1", "hub"),
        "trunk": ("hub", "server"),
        "client-2_hub": ("client-2", "hub"),
        "client-3_client-1": ("client-3", "client-1"),
    }
    assert rates(made) == {
        "client-1_hub": (60 * MBIT, 60 * MBIT),
        "trunk": (5 * MBIT, 60 * MBIT),
        "client-2_hub": (5 * MBIT, 5 * MBIT),
        "client-3_client-1": (MBIT, MBIT),
    }


def test_a_client_has_a_link_of_its_own() -> None:
    made = network(
        profile="wan",
        loss=0.1,
        up={"rate": "10mbit"},
        clients={"client-2": {"loss": 0.2}, "client-3": {"profile": "3g", "down": {"rate": "8mbit"}}},
    )
    first, second, third = made.links
    assert first.ab == Shape(rate=10 * MBIT, delay=0.02, loss=0.1)
    assert first.ba == Shape(rate=1000 * MBIT, delay=0.02, loss=0.1)
    assert second.ab == Shape(rate=10 * MBIT, delay=0.02, loss=0.2)
    assert third.ab == Shape(rate=5 * MBIT), "its profile replaces all"
    assert third.ba == Shape(rate=8 * MBIT)


def test_down_is_a_switch_and_a_direction() -> None:
    assert [(link.ab.down, link.ba.down) for link in network(down=True).links] == [(True, True)] * 3
    link = network(["a"], clients={"a": {"down": {"down": True, "rate": 7}}}).links[0]
    assert (link.ab, link.ba) == (Shape(), Shape(rate=7, down=True))
    link = network(["a"], down=True, up={"down": False}).links[0]
    assert (link.ab.down, link.ba.down) == (False, True)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"clients": {"client-9": {"loss": 0.1}}}, "no client 'client-9'. Did you mean"),
        ({"bottleneck": {"rate": 5}}, "network.bottleneck has no effect with topology = 'star'"),
        ({"links": [{"a": "x", "b": "y"}]}, "network.links has no effect with topology = 'star'"),
        ({"switches": ["x"]}, "network.switches has no effect"),
        ({"topology": "graph"}, "a graph needs links"),
        ({"topology": "graph", "links": [{"a": "clent-1", "b": "server"}]}, "Did you mean 'client-1'?"),
        ({"topology": "graph", "links": [{"a": "server", "b": "server"}]}, "with itself"),
        ({"topology": "graph", "links": [{"a": "client-1", "b": "server"}]}, "from client-2, client-3 to the server"),
        (
            {"topology": "graph", "links": [{"a": "client-1", "b": "server"}, {"a": "server", "b": "client-1"}]},
            "[[network.links]] 2 is the second link",
        ),
        (
            {"topology": "graph", "clients": {"client-1": {}}, "links": [{"a": "client-1", "b": "server"}]},
            "a graph's clients have no link of their own",
        ),
        (
            {"topology": "graph", "switches": ["client-1"], "links": [{"a": n, "b": "server"} for n in THREE]},
            "two hosts or switches of the network have the name 'client-1'",
        ),
        ({"clients": {"client-2": {"jitter": 1}}}, "the jitter of 1.00 s exceeds the delay of 0 us"),
    ],
)
def test_an_impossible_topology_is_explained(table: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError) as caught:
        network(**table)
    assert words in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("names", [["Anna"], ["a b"], ["-a"], ["a" * 32], ["switch"], ["bottleneck"], ["a", "a"], []])
def test_a_name_that_cannot_be_is_refused(names: list[str]) -> None:
    with pytest.raises(PlanError):
        network(names, topology="bottleneck", rate=1)


def test_too_many_clients_are_refused() -> None:
    many = [f"client-{number}" for number in range(1000)]
    with pytest.raises(PlanError, match="1000 clients cannot be emulated"):
        network(many)
    with pytest.raises(PlanError, match="more than 10000"):
        network(many[:150], topology="mesh")


def test_the_server_may_be_among_the_names() -> None:
    assert ends(network(["server", "a"])) == {"a": ("a", "server")}


def test_peers_exchange_through_a_switch_or_over_links_of_their_own() -> None:
    names = ["node-1", "node-2", "node-3"]
    star = spec.build(names, NetworkSection.model_validate({"rate": 1_000_000}), peers=True)
    assert {(link.a, link.b) for link in star.links} == {*((name, "switch") for name in names), ("server", "switch")}
    paths = routes(star)
    assert [hop[0].name for hop in paths["node-1", "node-2"]] == ["node-1", "node-2"]
    mesh = spec.build(names, NetworkSection.model_validate({"rate": 1_000_000, "topology": "mesh"}), peers=True)
    assert [hop[0].name for hop in routes(mesh)["node-2", "node-3"]] == ["node-2_node-3"]
    assert {name for pair in star.connected for name in pair} == set(names)


@pytest.mark.parametrize("peers", [False, True])
def test_a_graphs_word_links_the_pairs_that_it_joins(*, peers: bool) -> None:
    names = [f"node-{number}" for number in range(1, 17)]
    drawn = graphs.schedule("3-regular", 16, 7).links.edges
    section = NetworkSection.model_validate({"rate": MBIT, "topology": "3-regular", "clients": {"node-2": {"rate": 7}}})
    made = spec.build(names, section, 7, peers=peers)
    access = {*names, "server"} if peers else set(names)
    assert {link.name for link in made.links} - access == {f"{names[a]}_{names[b]}" for a, b in drawn}
    assert made.topology == "3-regular"
    paths = routes(made) if peers else {}
    for one, other in made.connected if peers else ():
        joined = (names.index(one), names.index(other)) in drawn
        assert len(paths[one, other]) == (1 if joined else 2), "through a link of their own, or the switch"
    assert {link.name: link.ab.rate for link in made.links}["node-2"] == 7


def test_many_nodes_fit_a_graph_that_do_not_fit_a_mesh() -> None:
    names = [f"node-{number}" for number in range(1, 257)]
    made = spec.build(names, NetworkSection.model_validate({"rate": MBIT, "topology": "ring"}), peers=True)
    assert len(made.links) == 256 + 256 + 1


@pytest.mark.parametrize(
    ("topology", "words", "hint"),
    [
        ("rign", "unknown topology 'rign'", "Did you mean 'ring'? Known: star, bottleneck"),
        ("mash", "unknown topology 'mash'", "Did you mean 'mesh'?"),
        ("9-regular", "cannot be 9-regular", ""),
    ],
)
def test_a_word_that_is_no_topology_is_refused(topology: str, words: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.of({"job": {"clients": 4}, "network": {"rate": MBIT, "topology": topology}})
    assert words in caught.value.cause
    assert hint in (caught.value.hint or "")


def test_peers_need_no_way_to_a_server() -> None:
    section = NetworkSection.model_validate({"rate": 1_000_000, "topology": "bottleneck"})
    with pytest.raises(PlanError, match="leads to a server, and a job on a graph has none"):
        spec.build(["a", "b"], section, peers=True)
