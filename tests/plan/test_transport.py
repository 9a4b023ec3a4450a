"""Plans against a registry of transports."""

from __future__ import annotations

from typing import Any

import pytest

from thalweg.errors import PlanError
from thalweg.plan import Plan, check_transport

ALL: dict[str, Any] = {"congestion": True, "remote": True, "encrypted": True}
ALL |= {"broker": False, "symmetric": True, "in_process": False, "preferred_chunk": 0}
NONE: dict[str, Any] = {"congestion": False, "remote": False, "encrypted": False, "in_process": True}
NONE |= {"preferred_chunk": 0}
LOCAL: dict[str, Any] = {**ALL, "congestion": False, "remote": False, "encrypted": False}


def setting(name: str, *needs: dict[str, Any], **kind: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "meaning": "", "needs": list(needs)}


REGISTRY: list[dict[str, Any]] = [
    {"name": "river", "available": True, "reason": None, "capabilities": ALL, "settings": []},
    {"name": "pond", "available": True, "reason": None, "capabilities": NONE, "settings": []},
    {"name": "lake", "available": True, "reason": None, "capabilities": LOCAL, "settings": []},
    {"name": "weir", "available": True, "reason": None, "capabilities": {**ALL, "symmetric": False}, "settings": []},
    {"name": "mill", "available": True, "reason": None, "capabilities": {**ALL, "broker": True}, "settings": []},
    {"name": "canal", "available": False, "reason": "it is dry", "capabilities": ALL, "settings": []},
    {
        "name": "lock",
        "available": True,
        "reason": None,
        "capabilities": ALL,
        "settings": [
            setting("gates", type="number", default=2, least=1, most=4),
            setting("mode", type="choice", default="up", choices=["up", "down"]),
            setting("shut", type="flag", default=False),
            setting("leak", type="share", default=0.5),
            setting("pump", {"type": "word", "name": "mode", "among": ["down"]}, type="flag", default=False),
            setting("lift", {"type": "chunk", "beside": 64}, type="number", default=9000, least=1, most=9000),
        ],
    },
]


def plan(url: str, **overrides: object) -> Plan:
    return Plan.of({}).merge({"transport.url": url, **{key.replace("__", "."): v for key, v in overrides.items()}})


ELSEWHERE: dict[str, object] = {
    "job__graph": "ring",
    "job__clients": 3,
    "hosts__nodes": {f"node-{number}": f"10.0.0.{number}:7000" for number in (1, 2, 3)},
}


def test_what_a_transport_can_do_is_accepted() -> None:
    check_transport(plan("river", transport__congestion="reno", transport__streams=4, security__tls="on"), REGISTRY)
    check_transport(plan("pond"), REGISTRY)
    check_transport(plan("river", job__graph="ring"), REGISTRY)
    check_transport(plan("river", **ELSEWHERE), REGISTRY)
    check_transport(plan("lake", job__graph="ring"), REGISTRY)
    check_transport(plan("river", network="wan"), REGISTRY)
    check_transport(plan("pond", network="none"), REGISTRY)
    own = plan("lock", transport__options__gates=4, transport__options__mode="down", transport__options__shut=True)
    check_transport(own, REGISTRY)
    # What is the default says nothing, and so does what is not known before the server is asked.
    for given in ({"mode": "down", "pump": True}, {"pump": False}, {"lift": 9000}, {"lift": 8000}):
        check_transport(plan("lock", **{f"transport__options__{key}": value for key, value in given.items()}), REGISTRY)
    for chunk, lift in ((1024, 1088), (4096, 1088)):
        check_transport(plan("lock", transport__chunk=chunk, transport__options__lift=lift), REGISTRY)
    for share in (0, 0.25, 1):
        check_transport(plan("lock", transport__options__leak=share), REGISTRY)


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (plan("rivr"), "Did you mean 'river'"),
        (plan("canal"), "it is dry"),
        (plan("weir", layers__compress__format="int8"), "behind a hole a compressed chunk cannot be read"),
        (plan("pond", transport__congestion="reno"), "transport.congestion"),
        (plan("pond", transport__client_congestion=["reno"]), "transport.client_congestion"),
        (plan("pond", transport__streams=2), "transport.streams"),
        (plan("pond", security__tls="on"), "security.tls"),
        (plan("pond", network="wan"), "crosses no network"),
        (plan("pond", job__graph="ring"), "stays within one process"),
        (plan("lake", **ELSEWHERE), "stays within one machine, and [hosts.nodes] is of nodes on several machines"),
        (plan("lake", network="wan"), "stays within one machine"),
        (plan("mill", job__graph="ring"), "goes through a broker"),
        (plan("weir", job__graph="ring"), "ends of a link over 'weir' are not alike"),
        (plan("pond", transport__options__gates=1), "no options of its own"),
        (plan("lock", transport__options__speed=1), "Known: gates, mode, shut, leak"),
        (plan("lock", transport__options__pump=True), "pump has no effect with mode = 'up'"),
        (
            plan("lock", transport__options__lift=1089, transport__chunk=1024),
            "Lower it to 1088, or raise transport.chunk",
        ),
        (plan("lock", transport__options__gates=5), "a whole number from 1 to 4"),
        (plan("lock", transport__options__gates=True), "a whole number from 1 to 4"),
        (plan("lock", transport__options__mode="left"), "one of up, down"),
        (plan("lock", transport__options__shut=1), "true or false"),
        (plan("lock", transport__options__leak=1.5), "a share from 0 to 1"),
        (plan("lock", transport__options__leak=True), "a share from 0 to 1"),
    ],
)
def test_what_it_cannot_do_is_refused(chosen: Plan, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        check_transport(chosen, REGISTRY)
    assert words in str(caught.value)
