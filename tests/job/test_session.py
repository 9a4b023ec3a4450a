"""How a run applies [network] and [stress]: the level of emulation, the places of parties, the record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from thalweg.errors import LabError, PlanError
from thalweg.job.common import session as sessions
from thalweg.lab import client, reaper
from thalweg.lab.client import RunningLab
from thalweg.lab.inside import ProcessPlace
from thalweg.lab.status import HostCounters, LinkStatus, Percentiles, Relay, Status
from thalweg.lab.values import Host
from thalweg.machine import Usage
from thalweg.network.spec import CONGESTION
from thalweg.plan import Plan, emulated
from thalweg.record import RunRecord
from thalweg.record.rows import Link, Party

NAMES = ["client-1", "client-2"]
LAYERS: Any = {"rate": 1}
HOSTS = {
    name: Host(namespace=f"/proc/1/fd/{number}", ipv4=f"10.77.0.{number}", ipv6=f"fd77::{number}")
    for number, name in enumerate(("server", *NAMES), 1)
}
LINK = LinkStatus(
    link="client-1", direction="ab", source="client-1", target="server", packets_in=9, lost=1,
    delay=Percentiles(0.01, 0.02, 0.03, 0.04), lateness=Percentiles(p50=0.0, p99=0.1, max=0.2),
)  # fmt: skip
STATUS = Status(
    relay=Relay(),
    links=[LINK],
    hosts={"client-1": HostCounters(retransmitted_segments=3, receive_buffer_drops=0, limiter_drops=2)},
)


def plan(**sections: Any) -> Plan:
    return Plan.of({"job": {"clients": 2}, "model": {"name": "payload:1MiB"}, **sections})


class Tables:
    """A fake record that stores what it gets."""

    def __init__(self) -> None:
        self.tables: dict[str, list[Mapping[str, Any]]] = {}
        self.facts: dict[str, Any] = {}

    def parties(self, rows: list[Party]) -> None:
        self.tables["parties"] = [asdict(row) for row in rows]

    def links(self, rows: list[Link]) -> None:
        self.tables["links"] = [asdict(row) for row in rows]

    def note(self, **facts: object) -> None:
        self.facts |= facts


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolates the test from the machine's labs and cgroups."""
    monkeypatch.setattr(reaper, "reap", list)
    monkeypatch.setattr(emulated, "message_layers", lambda _: LAYERS)


def refusing(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def refuse(*_: object, **__: object) -> RunningLab:
        raise LabError("no", "do", kind)

    monkeypatch.setattr(client, "start", refuse)


@pytest.fixture
def packets(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces the lab by a fake one that is ready at once. Returns the list of its calls."""
    calls: list[str] = []
    lab = SimpleNamespace(
        name="run-lan",
        hosts=HOSTS,
        failure=None,
        last=None,
        status=lambda: STATUS,
        down=lambda: calls.append("down"),
    )
    monkeypatch.setattr(client, "start", lambda *_, **__: lab)
    monkeypatch.setattr("thalweg.lab.namespaces.congestion_control", lambda _: "cubic")
    return calls


@pytest.mark.parametrize(
    ("transport", "network", "host"),
    [
        ({"url": "mqtt", "congestion": "cubic"}, {"profile": "lan"}, "server"),
        ({"url": "mqtt", "congestion": "cubic"}, {"profile": "lan", "broker": {}}, "broker"),
        ({"url": "mqtt"}, {"profile": "lan"}, None),
        ({"url": "tcp", "congestion": "cubic"}, {"profile": "lan"}, None),
    ],
)
def test_the_lab_gives_a_brokers_host_the_plans_congestion_control(
    packets: list[str], transport: dict[str, str], network: dict[str, Any], host: str | None
) -> None:
    """The broker's process cannot set it if the kernel refuses that algorithm in a namespace, but the lab can."""
    with sessions.session(plan(network=network, transport=transport), NAMES, lambda _: None) as made:
        assert made.spec is not None
        chosen = {one.name: one.sysctls.get(CONGESTION) for one in made.spec.hosts}
    assert {name for name, value in chosen.items() if value is not None} == ({host} if host else set())
    assert chosen.get(host or "server") == ("cubic" if host else None)


def test_no_network_is_none() -> None:
    with sessions.session(plan(), NAMES, lambda _: None) as made:
        assert (made.emulation, made.url, made.layers) == ("none", "tcp://127.0.0.1:0", None)
        assert made.place("client-1") is None
        assert made.facts() == {"emulation": "none", "network": None}
    with sessions.session(plan(network={"emulator": "none", "loss": "1%"}), NAMES, lambda _: None) as made:
        assert made.emulation == "none"


def test_without_root_auto_is_at_message_level_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, "permission")
    notes: list[str] = []
    with sessions.session(plan(network={"profile": "lan"}), NAMES, notes.append) as made:
        assert made.lab is None
        assert made.layers == LAYERS
        assert made.emulation == f"message level: {json.dumps({'emulate': LAYERS})}"
        assert made.reason == "no"
        assert made.url == "tcp://127.0.0.1:0"
        network_facts = made.facts()["network"]
    assert isinstance(network_facts, sessions.NetworkFacts)
    assert network_facts.reason == "no"
    assert network_facts.relay is None
    assert notes == ["network: emulated at message level, because packets cannot be emulated here: no"]


@pytest.mark.parametrize(("emulator", "kind"), [("packet", "permission"), ("auto", "lab"), ("auto", "unsupported")])
def test_errors_other_than_missing_permission_are_raised(
    monkeypatch: pytest.MonkeyPatch, emulator: str, kind: str, tmp_path: Path
) -> None:
    refusing(monkeypatch, kind)
    monkeypatch.setattr(sessions, "TUN", tmp_path)
    with pytest.raises(LabError, match="no"), sessions.session(plan(network={"emulator": emulator}), NAMES, print):
        raise AssertionError("it must not begin")


def test_a_machine_without_tun_falls_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refusing(monkeypatch, "unsupported")
    monkeypatch.setattr(sessions, "TUN", tmp_path / "none")
    with sessions.session(plan(network={"profile": "lan"}), NAMES, lambda _: None) as made:
        assert made.reason == "no"


@pytest.mark.parametrize(
    ("url", "listens"),
    [
        ("tcp", "tcp://10.77.0.1:0"),
        ("tcp://127.0.0.1:7070", "tcp://10.77.0.1:7070"),
        ("tcp://[::1]:7070", "tcp://[fd77::1]:7070"),
    ],
)
def test_the_server_is_in_the_lab(packets: list[str], url: str, listens: str) -> None:
    asked = plan(network={"profile": "lan"}, transport={"url": url})
    with sessions.session(asked, NAMES, lambda _: None) as made:
        assert made.url == listens
        assert made.emulation == "packet level"
        assert made.place("client-2") == ProcessPlace("/proc/1/fd/3")
    assert packets == ["down"]


def test_the_lab_goes_down_whatever_happens(packets: list[str]) -> None:
    with pytest.raises(KeyError), sessions.session(plan(network={"profile": "lan"}), NAMES, lambda _: None):
        raise KeyError
    assert packets == ["down"]


def test_what_the_record_gets(packets: list[str]) -> None:
    record = Tables()
    with sessions.session(plan(network={"profile": "lan"}), NAMES, lambda _: None) as made:
        made.finish(cast("RunRecord", record), {"client-1": Usage(2.5, 7)})
    server, first, second = record.tables["parties"]
    assert server["cpu_seconds"] >= 0
    assert first == {
        "party": "client-1",
        "cpu_seconds": 2.5,
        "peak_rss_bytes": 7,
        "retransmitted_segments": 3,
        "receive_buffer_drops": 0,
        "limiter_drops": 2,
        "congestion_control": "cubic",
        "cpu_quota": None,
        "stress": None,
    }
    assert second["cpu_seconds"] is None, "it was killed"
    (link,) = record.tables["links"]
    assert (link["lost"], link["delay_p90"], link["lateness_max"]) == (1, 0.02, 0.2)
    assert json.loads(link["nominal"])["down"] is False
    assert record.facts["network"].relay == Relay()
    assert record.facts["network"].congestion_control == "cubic"


TREE: dict[str, Any] = {"aggregation": {"shape": "tree"}, "nodes": {"count": 3, "capacity": 1}}


def test_nodes_of_a_tree_are_parties(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, "permission")
    with sessions.session(plan(**TREE, network={"profile": "lan"}), NAMES, lambda _: None) as made:
        assert made.homes == {"client-1": "node-0", "client-2": "node-1"}
        assert made.parties == ["server", "node-0", "node-1", *NAMES]
        assert made.spec is not None
        assert [host.name for host in made.spec.hosts] == made.parties
        assert made.listening("node-0") == "tcp://127.0.0.1:0"


def test_stress_names_nodes_that_are_used() -> None:
    asked = plan(**TREE, stress={"cpu_quota": 0.5, "parties": ["node-2"]})
    with pytest.raises(PlanError, match="no client was placed there"), sessions.session(asked, NAMES, print):
        raise AssertionError("it must not begin")


def test_the_flood_needs_a_network() -> None:
    asked = plan(stress={"network": "10mbit"})
    with pytest.raises(PlanError, match=r"stress\.network"), sessions.session(asked, NAMES, lambda _: None):
        raise AssertionError("it must not begin")
