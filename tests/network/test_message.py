"""A network at message level: the core's settings, and that the core accepts them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from thalweg import _core
from thalweg.errors import PlanError
from thalweg.network.shape import Shape
from thalweg.plan import Plan
from thalweg.plan.emulated import message_layers, network_of


def layers(text: str, clients: int = 3) -> Any:
    plan = Plan.loads(f"[job]\nclients = {clients}\n{text}")
    made = message_layers(plan)
    assert made["seed"] == network_of(plan).seed
    return made


def test_links_that_are_alike_are_said_once() -> None:
    made = layers("[network]\nprofile = 'wan'\n[network.up]\nloss = '1%'")
    assert made["up"] == Shape(rate=10**9, delay=0.02, loss=0.01).table()
    assert made["down"] == Shape(rate=10**9, delay=0.02).table()
    assert "clients" not in made


def test_a_client_that_differs_is_named() -> None:
    made = layers("[network]\nprofile = 'wifi'\n[network.clients.client-1]\nprofile = '3g'")
    assert made["up"]["rate"] == 60_000_000
    assert made["clients"] == {"client-1": {"up": Shape(rate=5_000_000).table(), "down": Shape(rate=5_000_000).table()}}


def test_drawn_links_all_differ() -> None:
    made = layers("[network]\nprofile = 'unifl-wan'", clients=8)
    assert len(made["clients"]) == 7
    assert len({json.dumps(way) for way in made["clients"].values()}) == 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[network]\ntopology = 'bottleneck'\nrate = 9", "no topology = 'bottleneck'"),
        ("[transport]\nurl = 'mqtt'\n[network]\n[network.broker]", "no [network.broker]"),
        ("[network]\nmtu = 9000", "no mtu = 9000"),
        ("[network]\n[[network.changes]]\nat = 1\ndown = true", "no [[network.changes]]"),
    ],
)
def test_what_only_packets_show_is_refused(text: str, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        layers(text)
    assert words in caught.value.cause
    assert "needs root" in caught.value.hint


def test_the_core_takes_it() -> None:
    made = layers("[network]\nprofile = 'dpsgd'\nburst = '1%/30%'\n[network.clients.client-2]\nqueue = '9 packets'")
    arena = _core.Arena(_core.Layout([("payload", "F32", [4])]))
    server = _core.Server(arena, "tcp://127.0.0.1:0", json.dumps({"layers": {"emulate": made}}))
    server.close("done")
    made["up"]["loss"] = 2
    with pytest.raises(_core.CoreError, match="loss is 2"):
        _core.Server(arena, "tcp://127.0.0.1:0", json.dumps({"layers": {"emulate": made}}))
