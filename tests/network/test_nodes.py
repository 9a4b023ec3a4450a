"""Networks of trees: each client leads to its own node, and nodes and server to a switch."""

from __future__ import annotations

from typing import Any, Final

import pytest

from thalweg.errors import PlanError
from thalweg.network import bound
from thalweg.network.nodes import round_robin
from thalweg.network.routes import routes
from thalweg.network.spec import Spec
from thalweg.plan import Plan
from thalweg.plan.emulated import message_layers, network_of

MBIT: Final = 1_000_000
MB: Final = 1_000_000
HOMES: Final = {"client-1": "node-0", "client-2": "node-0", "client-3": "node-2"}


def plan(network: dict[str, Any] | None = None, **nodes: Any) -> Plan:
    return Plan.of(
        {
            "job": {"clients": 3},
            "aggregation": {"shape": "tree"},
            "network": network or {"rate": "50mbit", "delay": "1ms"},
            "nodes": {"count": 3, **nodes},
        }
    )


def ends(made: Spec) -> dict[str, tuple[str, str, int | None, int | None]]:
    return {link.name: (link.a, link.b, link.ab.rate, link.ba.rate) for link in made.links}


def test_each_client_is_linked_with_its_node() -> None:
    made = network_of(plan(link="442mbit"), HOMES)
    assert [host.name for host in made.hosts] == ["server", "node-0", "node-2", *HOMES], "only nodes that are used"
    assert made.switches == ("switch",)
    assert made.clients == list(HOMES)
    assert ends(made) == {
        **{client: (client, home, 50 * MBIT, 50 * MBIT) for client, home in HOMES.items()},
        **{name: (name, "switch", 442 * MBIT, 442 * MBIT) for name in ("server", "node-0", "node-2")},
    }


def test_the_clients_of_a_node_may_share_a_rate_on_their_way_in() -> None:
    made = network_of(plan(client_link="60mbit"), HOMES)
    link_ends = ends(made)
    assert link_ends["client-2"][:2] == ("client-2", "node-0-clients")
    assert link_ends["node-0-clients"] == ("node-0-clients", "node-0", 60 * MBIT, None)
    assert link_ends["node-0"] == ("node-0", "switch", None, None)
    # Two clients share the link up to their node, and each has a link down of its own.
    up = 2 * MB * 8 / (60 * MBIT) * 1500 / 1448
    down = MB * 8 / (50 * MBIT) * 1500 / 1448
    assert bound.seconds(made, MB, 3) == pytest.approx(down + up + 0.002)


def test_paths_between_nodes_and_to_clients_are_known() -> None:
    paths = {pair: [link.name for link, _ in path] for pair, path in routes(network_of(plan(), HOMES)).items()}
    assert paths["node-0", "node-2"] == ["node-0", "node-2"]
    assert paths["server", "node-2"] == ["server", "node-2"]
    assert paths["node-2", "client-3"] == ["client-3"]
    assert ("server", "client-1") not in paths, "clients exchange nothing with the server"


def test_without_a_placement_clients_are_dealt_in_turn() -> None:
    assert round_robin(["a", "b", "c"], ["x", "y"]) == {"a": "x", "b": "y", "c": "x"}
    assert network_of(plan()).homes == {"client-1": "node-0", "client-2": "node-1", "client-3": "node-2"}


def test_changes_of_all_links_leave_those_between_nodes() -> None:
    changes = [{"at": 1, "link": "*", "rate": "1mbit"}]
    made = network_of(plan({"rate": "50mbit", "changes": changes}, link="442mbit"), HOMES)
    assert {change.link for change in made.changes} == set(HOMES)


def test_a_layer_around_a_link_knows_of_clients_alone() -> None:
    layers: Any = message_layers(plan({"rate": "50mbit"}))
    assert layers["up"]["rate"] == 50 * MBIT
    assert "clients" not in layers
    with pytest.raises(PlanError, match=r"nodes\.link is shared by several") as caught:
        message_layers(plan({"rate": "50mbit"}, link="1gbit"))
    assert "emulator = 'packet'" in caught.value.hint


@pytest.mark.parametrize(
    ("network", "cause"),
    [
        ({"topology": "bottleneck", "rate": "1mbit"}, "network.topology = 'bottleneck' needs a single server"),
        ({"broker": {}}, "network.broker has no effect in a tree of several nodes"),
    ],
)
def test_networks_of_one_server_are_refused(network: dict[str, Any], cause: str) -> None:
    with pytest.raises(PlanError, match=cause) as caught:
        plan(network)
    assert caught.value.hint.startswith("Remove ")
