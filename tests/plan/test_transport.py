"""Plans against a registry of transports."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from thalweg.errors import PlanError
from thalweg.plan import Plan, check_transport
from thalweg.transports.registry import Capabilities, ChunkNeed, Kind, Setting, Transport, WordNeed

ALL: Final = Capabilities(
    reliable=True, ordered=True, settled=False, detached=False, datagrams=False, fan_out=False, broker=False,
    zero_copy=False, encrypted=True, sender_unmodified=True, symmetric=True, remote=True, in_process=False, lends=False,
    congestion=True, retransmissions=True, max_chunk=4 << 20, preferred_chunk=0,
)  # fmt: skip
LOCAL: Final = replace(ALL, congestion=False, remote=False, encrypted=False)
NONE: Final = replace(LOCAL, in_process=True)


def setting(name: str, kind: Kind, *needs: WordNeed | ChunkNeed) -> Setting:
    return Setting(name, kind, "", needs)


REGISTRY: Final = [
    Transport("river", True, "", ALL, ()),
    Transport("pond", True, "", NONE, ()),
    Transport("lake", True, "", LOCAL, ()),
    Transport("weir", True, "", replace(ALL, symmetric=False), ()),
    Transport("mill", True, "", replace(ALL, broker=True), ()),
    Transport("canal", False, "it is dry", ALL, ()),
    Transport(
        "lock",
        True,
        "",
        ALL,
        (
            setting("gates", Kind("number", 2, least=1, most=4)),
            setting("mode", Kind("choice", "up", choices=("up", "down"))),
            setting("shut", Kind("flag", False)),
            setting("leak", Kind("share", 0.5)),
            setting("pump", Kind("flag", False), WordNeed("word", "mode", ("down",))),
            setting("lift", Kind("number", 9000, least=1, most=9000), ChunkNeed("chunk", 64)),
        ),
    ),
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
    # Client options do not include defaults and values that only the server knows.
    for options in ({"mode": "down", "pump": True}, {"pump": False}, {"lift": 9000}, {"lift": 8000}):
        check_transport(
            plan("lock", **{f"transport__options__{key}": value for key, value in options.items()}), REGISTRY
        )
    for chunk, lift in ((1024, 1088), (4096, 1088)):
        check_transport(plan("lock", transport__chunk=chunk, transport__options__lift=lift), REGISTRY)
    for share in (0, 0.25, 1):
        check_transport(plan("lock", transport__options__leak=share), REGISTRY)


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (plan("rivr"), "Did you mean 'river'"),
        (plan("canal"), "it is dry"),
        (plan("weir", layers__compress__format="int8"), "a compressed chunk cannot be decoded behind a hole"),
        (plan("pond", transport__congestion="reno"), "transport.congestion"),
        (plan("pond", transport__client_congestion=["reno"]), "transport.client_congestion"),
        (plan("pond", transport__streams=2), "transport.streams"),
        (plan("pond", security__tls="on"), "security.tls"),
        (plan("pond", network="wan"), "crosses no network"),
        (plan("pond", job__graph="ring"), "stays within one process"),
        (plan("lake", **ELSEWHERE), "stays within one machine, and [hosts.nodes] is for nodes on several machines"),
        (plan("lake", network="wan"), "stays within one machine"),
        (plan("mill", job__graph="ring"), "goes through a broker"),
        (plan("weir", job__graph="ring"), "ends of a link over 'weir' differ"),
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
def test_requests_beyond_a_transports_capabilities_are_refused(chosen: Plan, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        check_transport(chosen, REGISTRY)
    assert words in str(caught.value)
